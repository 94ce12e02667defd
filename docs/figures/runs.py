"""
# The recorded runs of an experiment

The end of an experiment's page: the curve, the result beside its baselines, and everything you need to check
or repeat it.
"""

import statistics
import textwrap
from collections.abc import Sequence
from typing import Any

from docs.figures import attention, live
from docs.figures.continued import table as continued_table
from docs.figures.cost import cost
from docs.figures.derived import parameters_table, retrieval_table, wins_table
from docs.figures.records import Record, describe_check, provenance
from docs.figures.speed import ablation, modern_steps, speed
from docs.literate.chart import Line, line_chart
from docs.literate.names import Source
from docs.literate.prose import cell, fence_code, wide
from docs.literate.rows import PageError


def results(record: Record) -> str:
    """The result and the baselines, as a Markdown table."""
    ours = record.data["result"]
    rows = [
        (cell(baseline["name"]), baseline["loss"], baseline["accuracy"])
        for baseline in record.data["baselines"]
    ]
    rows.append(("**this run**", ours["loss"], ours["accuracy"]))
    body = "".join(f"| {name} | {loss:.3f} | {accuracy:.1%} |\n" for name, loss, accuracy in rows)
    table = f"| method | held-out loss, nats | accuracy |\n|---|---:|---:|\n{body}"
    return table + (pairs(ours) if "next_sentence_accuracy" in ours else "")


def pairs(result: dict[str, float]) -> str:
    """How well a run on sentence pairs predicts the next sentence, as a Markdown table."""
    chance = result["next_sentence_chance"]
    error = result["next_sentence_standard_error"]
    above = (result["next_sentence_accuracy"] - chance) / error
    return (
        f"\n| next sentence, {result['pairs']:,.0f} held-out pairs | accuracy |\n|---|---:|\n"
        f"| always the more frequent class | {chance:.1%} |\n"
        f"| **this run**, {above:.1f} standard errors above | {result['next_sentence_accuracy']:.1%} |\n"
    )


def mean_and_std(values: Sequence[float]) -> str:
    """Mean and standard deviation over the seeds: `61.2% ± 0.8%`."""
    std = f" ± {statistics.stdev(values):.1%}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1%}{std}"


def comparison(record: Record) -> str:
    """
    A comparison of methods at several numbers of labels: a table for each task, and a chart if there is more
    than one number.
    """
    rows: list[dict[str, Any]] = record.data["table"]
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    parts: list[str] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        details = record.data["tasks"][task]
        counts = sorted({row["labels"] for row in rows if row["task"] == task})

        def of(arm: str, labels: int, column: str, task: str = task) -> list[float]:
            return [
                row[column] for row in rows if (row["task"], row["arm"], row["labels"]) == (task, arm, labels)
            ]

        table = (
            f"| {cell(task)}, labels | method | accuracy | macro F1 | accuracy, unseen text |\n"
            "|---|---|---:|---:|---:|\n"
        )
        for labels in counts:
            for arm in arms:
                cells = (of(arm, labels, name) for name in ("accuracy", "macro_f1", "unseen_accuracy"))
                table += f"| {labels:,} | {cell(arm)} | {' | '.join(map(mean_and_std, cells))} |\n"
        table += f"| any | always the most frequent class | {details['chance']:.1%} | – | – |\n"
        if len(counts) > 1:
            lines = [
                Line(arm, [(n, 100 * statistics.mean(of(arm, n, "accuracy"))) for n in counts])
                for arm in arms
            ]
            title = f"Accuracy in the task {task}, by number of labeled texts"
            baseline = [("most frequent class", 100 * details["chance"])]
            parts.append(line_chart(lines, title, "labeled texts", "accuracy, %", baseline))
        parts.append(table)
    data = record.data
    seeds = data["configuration"]["seeds"]
    return "\n\n".join(
        [
            *parts,
            f"Mean and standard deviation over {cell(seeds)} seeds. Unseen texts were not in the text of "
            f"pretraining. {provenance(record)} "
            f"The network has {data['parameters']:,} parameters.",
        ]
    )


def facts(record: Record) -> str:
    """Date, machine, text, versions and commit, as a Markdown table."""
    data = record.data
    versions = ", ".join(cell(f"{name} {number}") for name, number in data["versions"].items())
    corpus = data["corpus"]
    rows = {
        "Date": cell(data["date"]),
        "Machine": cell(record.machine()),
        "Training": f"{data['result']['training_seconds']:,.0f} s, {data['result']['steps']:,} steps",
        "Parameters": f"{data['parameters']:,}",
        "Text": f"{cell(corpus['name'])}, {corpus['train_characters']:,} characters, "
        f"sha256 `{cell(corpus['sha256'][:12])}…`",
        "Versions": versions,
        "Commit": f"`{cell((data.get('commit') or 'unknown')[:12])}`",
    }
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    return wide(f"| what | this run |\n|---|---|\n{table}")


def parts_table(record: Record) -> str:
    """What `gpu.py` has run, and for how long, as a Markdown table."""
    rows = "".join(
        f"| {cell(part['name'])} | {part['seconds']:,.0f} | {'yes' if part['succeeded'] else 'no'} |\n"
        for part in record.data["parts"]
    )
    return f"| part | seconds | succeeded |\n|---|---:|---|\n{rows}\n{provenance(record)}"


def curves(record: Record) -> str:
    """Training and held-out loss by seconds of training."""
    # The `loss` of a run on pairs includes that of next sentence prediction.
    training = "masked_lm_loss" if "masked_lm_loss" in record.data["history"] else "loss"
    lines = [Line("training", record.curve(training)), Line("held out", record.curve("valid.loss"))]
    baselines = [(baseline["name"], baseline["loss"]) for baseline in record.data["baselines"]]
    title = f"Training and held-out loss of the run {record.name}"
    caption = f"{title}."
    if record.has_partial_curve:
        loss = record.data["result"]["loss"]
        caption += f" The curve is for part of the held-out text; the final loss on all of it is {loss:.2f}."
    return line_chart(lines, title, "seconds of training", "loss, nats per masked token", baselines, caption)


def recorded_runs(source: Source, records: dict[str, Record]) -> str:
    """Markdown for the end of an experiment's page. Empty for a file that isn't an experiment."""
    if not source.path.startswith("experiments/") or not source.is_script:
        return ""
    name = source.page.rpartition("/")[2]
    if name == "claims":
        return "## Recorded runs {#runs}\n\nThe results are on [the claims page](../../claims.md).\n\n"
    mine = [
        record
        for record in records.values()
        # A record also belongs to the pages of the scripts that its own script has run.
        if name in (record.data["experiment"], *record.data.get("scripts", []))
    ]
    mine.sort(key=lambda record: record.name != name)
    # Nobody searches for the tables of a run.
    parts = ["## Recorded runs {#runs data-search-exclude}\n\n"]
    if not mine:
        parts.append("No run has been recorded yet.\n\n")
    for record in mine:
        try:
            check, content, title = describe_check(record), result_of(record, records), headline(record)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PageError(f"docs/runs/{record.name}.json is damaged ({error!r}); restore it") from None
        parts.append(f"### {record.name} {{#run-{record.name} data-search-exclude}}\n\n")
        sentence = f"{check}\n\n" if check else ""
        content = f"{sentence}{fence_code('sh', record.data['command'])}\n{content}\n"
        # The first one is open. A page with ten open runs would be too long to read.
        parts.append(content if record is mine[0] else fold(title, content))
    return "".join(parts)


def result_of(record: Record, records: dict[str, Record]) -> str:
    """The figures and tables of one recorded run, as Markdown."""
    if "pictures" in record.data:
        pictures = (live.attention, live.positions, live.dense_layer, live.neighbors)
        return "\n\n".join(
            [
                live.curves(record),
                live.moments(record, records.get("mlm_tiny")),
                facts(record),
                f"The modern encoder: {provenance(record.modern)}",
                *(picture(record) for picture in pictures),
            ]
        )
    if "history" in record.data:
        return f"{curves(record)}\n\n{results(record)}\n{facts(record)}"
    if "trained_parameters" in record.data:
        tasks = (f"**{cell(task)}**\n\n{parameters_table(record, task)}" for task in record.data["tasks"])
        return "\n\n".join([*tasks, f"F1 for tokens, accuracy for spans. {provenance(record)}"])
    parts = {
        "table": comparison,
        "speed": speed,
        "modern_steps": modern_steps,
        "ablation": ablation,
        "parts": parts_table,
        "growth": cost,
    }
    for name, show in parts.items():
        if name in record.data:
            return show(record)
    tables = {"retrieval": retrieval_table, "continued": continued_table, "wins": wins_table}
    for name, table in tables.items():
        if name in record.data["result"]:
            return f"{table(record)}\n\n{provenance(record)}"
    return f"{attention.predictions(record)}\n\n{attention.mask_rows(record)}"


def headline(record: Record) -> str:
    """The result of a run in a few words, or "Show this run" if it has no loss."""
    result = record.data.get("result", {})
    if "loss" not in result:
        return "Show this run"
    return f"Held-out loss {result['loss']:.3f}, accuracy {result['accuracy']:.1%}, {result['steps']:,} steps"


def fold(title: str, content: str) -> str:
    """Markdown that is folded until the reader opens it."""
    return f'??? run "{title}"\n\n{textwrap.indent(content, "    ")}\n\n'
