"""
# The two recipes

The learning rates of the original pretraining and of a recorded run, and how many short runs fail without
Adam's bias correction.
"""

from docs.figures.claims import Claim
from docs.figures.records import Record
from docs.literate.chart import Line, line_chart
from docs.literate.prose import cell
from labml_bert.training.optimization import TrainingArguments


def learning_rate_chart(record: Record) -> str:
    """
    The learning rate of BERT and of a run, as a percentage of the peak, over the percentage of the training.
    """
    ours = record.data["configuration"]
    peaks = {
        "BERT base": TrainingArguments(learning_rate=1e-4, warmup_ratio=0.01, steps=1_000_000),
        ours["experiment"]: TrainingArguments(
            learning_rate=ours["learning_rate"],
            warmup_ratio=ours["warmup_ratio"],
            steps=record.data["result"]["steps"],
        ),
    }
    lines = []
    for name, arguments in peaks.items():
        peak = arguments.learning_rate
        # The learning rate is piecewise linear, so its corners define the curve.
        points = [
            (100 * x, 100 * arguments.learning_rate_at(x) / peak) for x in (0.0, arguments.warmup_ratio, 1.0)
        ]
        lines.append(Line(f"{name}, peak {peak:g}", points))
    title = "The learning rate during training, as a percentage of its peak"
    caption = (
        f"{title}. In both recipes, the learning rate warms up linearly and then decays linearly to zero."
    )
    return line_chart(lines, title, "percent of the training", "percent of the peak", caption=caption)


def failed_runs(claim: Claim) -> str:
    """How many runs failed, by variant and learning rate, as a Markdown table."""
    learning_rates = sorted({row["options"]["learning_rate"] for row in claim.rows})
    head = " | ".join(f"learning rate {learning_rate:g}" for learning_rate in learning_rates)
    table = f"| failed runs | {head} |\n|---|{'---:|' * len(learning_rates)}\n"
    for arm in claim.arms:
        cells = []
        for learning_rate in learning_rates:
            runs = [row for row in claim.of(arm) if row["options"]["learning_rate"] == learning_rate]
            failures = sum(row["result"]["failed"] for row in runs)
            cells.append(f"{failures:.0f} of {len(runs)}")
        table += f"| {cell(claim.label(arm))} | {' | '.join(cells)} |\n"
    return table
