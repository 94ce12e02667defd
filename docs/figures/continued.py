"""
# Continued pretraining

What the chapter on continued pretraining quotes from a record of `compare_continued.py`: the curves of the
variants, their results, and how much one variant differs from another with the same seed.
"""

import statistics
from typing import Any

from markupsafe import Markup

from docs.figures.claims import format_signed
from docs.figures.records import Record
from docs.literate.chart import Line, line_chart
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError
from experiments.claims.decision import mean

PRETRAINED = "pretrained"


def variants(record: Record) -> list[str]:
    """The names of the variants, in order."""
    return [row["variant"] for row in record.data["result"]["continued"][0]["variants"]]


def results(record: Record, variant: str) -> list[dict[str, Any]]:
    """
    The results of a variant, one for each seed. The pretrained model is a variant too; its `loss` is on the
    old text. Each other result also has `loss_before`, the loss on the new text before the first step,
    and `forgotten`, the increase of the loss on the old text.

    Raises `PageError` if there is no such variant.
    """
    if variant not in (PRETRAINED, *variants(record)):
        raise PageError(f"the run {record.name} has no {variant!r}; it has {', '.join(variants(record))}")
    rows = []
    for seed in record.data["result"]["continued"]:
        if variant == PRETRAINED:
            rows.append(seed[PRETRAINED])
            continue
        row = next(row for row in seed["variants"] if row["variant"] == variant)
        before = row["before"]
        rows.append({**row, "loss_before": before["loss"], "forgotten": row["old_loss"] - before["old_loss"]})
    return rows


def value(record: Record, variant: str, field: str) -> float:
    """The mean of a result over the seeds. Raises `PageError` if there is no such variant."""
    return statistics.mean(row[field] for row in results(record, variant))


def gap(record: Record, field: str, variant: str, over: str, percent: bool = False) -> str:
    """
    One result of a variant minus that of another, averaged over the seeds, with its 95% interval, and whether
    the difference is inconclusive. Each seed gives one difference: both variants start with the same seed.
    """
    pairs = zip(results(record, variant), results(record, over), strict=True)
    interval = mean([row[field] - other[field] for row, other in pairs])
    factor, digits = (100, 1) if percent else (1, 2)
    middle, low, high = (format_signed(factor * number, digits) for number in interval)
    unit = "points" if percent else "nats"
    verdict = ", which is inconclusive" if interval.low <= 0 <= interval.high else ""
    return f"{middle} {unit} (95% CI {low} to\N{NO-BREAK SPACE}{high}){verdict}"


def first_below(record: Record, variant: str, over: str) -> list[int]:
    """
    For each seed, the tokens after which the loss of a variant on the new text was first below the final loss
    of another variant.

    Raises `PageError` if a run never gets that low.
    """
    tokens = []
    for row, other in zip(results(record, variant), results(record, over), strict=True):
        goal = other["curves"]["loss"][-1][1]
        steps = [step for step, loss in row["curves"]["loss"] if loss < goal]
        if not steps:
            raise PageError(f"{variant!r} never has a lower loss than {over!r}")
        tokens.append(steps[0] * row["tokens"] // row["steps"])
    return tokens


def example(record: Record, index: int) -> str:
    """A new token and its pieces, in Markdown: "`hat` into `h` and `##at`"."""
    word, pieces = list(record.data["result"]["continued"][0]["new_tokens"].items())[index]
    *first, last = (f"`{piece}`" for piece in pieces)
    return f"`{word}` into {', '.join(first)} and {last}"


def shorter(record: Record) -> float:
    """The fraction by which the new tokens shorten the held-out text."""
    before, after = record.data["result"]["continued"][0]["held_out_tokens"]
    return float(1 - after / before)


def table(record: Record) -> str:
    """The variants with the means of their results over the seeds, as Markdown."""
    head = (
        "| variant | learning rate | tokens | seconds | loss, new text | loss, old text | word accuracy |\n"
    )
    body = "|---|---:|---:|---:|---:|---:|---:|\n"
    rows = [row["before"] for row in results(record, "continued")]
    new, old = (statistics.mean(row[name] for row in rows) for name in ("loss", "old_loss"))
    accuracy = value(record, PRETRAINED, "word_accuracy")
    body += f"| {PRETRAINED}, not continued | – | – | – | {new:.2f} | {old:.2f} | {accuracy:.1%} |\n"
    for variant in variants(record):
        rows = results(record, variant)
        cells = [
            f"{rows[0]['learning_rate']:g}",
            f"{rows[0]['tokens']:,}",
            f"{value(record, variant, 'seconds'):.0f}",
        ]
        for field in ("loss", "old_loss"):
            # Losses with different tokenizers can't be compared.
            cells.append("–" if "new tokens" in variant else f"{value(record, variant, field):.2f}")
        cells.append(f"{value(record, variant, 'word_accuracy'):.1%}")
        body += f"| {cell(variant)} | {' | '.join(cells)} |\n"
    return wide(head + body)


def chart(record: Record, curve: str, *names: str, title: str, caption: str = "") -> Markup:
    """Curves of the loss on the new text (`loss`) or on the old one (`old_loss`), a line for each seed."""
    lines = []
    for variant in names:
        for seed, row in enumerate(results(record, variant)):
            per_step = row["tokens"] // row["steps"]
            points = [(float(step * per_step), loss) for step, loss in row["curves"][curve]]
            lines.append(Line(f"{variant}, seed {seed}", points, variant))
    return line_chart(lines, title, "tokens of the new text", "loss, nats per masked token", caption=caption)
