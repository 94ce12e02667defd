"""
# How cost scales

The figures and tables below `experiments/speed/cost.py`: time and memory of a training step against each
size, and what it takes to draw batches from more text.
"""

from typing import Any

from docs.figures.records import Record, provenance
from docs.literate.chart import Line, line_chart
from docs.literate.prose import cell, wide

# The range of the time exponent that counting FLOPs predicts, as the experiment explains.
EXPECTED = {"T": (1, 2), "V": (0, 1), "D": (0, 2), "B": (0, 1)}


def describe_exponent(entry: dict[str, Any]) -> str:
    """The predicted range of the time exponent, and how far the measured one is from it, as table cells."""
    low, high = EXPECTED[entry["letter"]]
    last = entry["exponents"]["seconds"]["last"]
    if last > high:
        where = f"{last - high:.2f} above the range"
    elif last < low:
        where = f"{low - last:.2f} below the range"
    else:
        where = f"inside, {high - last:.2f} under {high}"
    return f"{f'{low} to' if low else 'at most'} {high} | {where}"


def exponents(entry: dict[str, Any], which: str) -> str:
    """The exponents of time and memory, as table cells."""
    cells = (entry["exponents"].get(name) for name in ("seconds", "memory"))
    return " | ".join("–" if cell is None else f"{cell[which]:.2f}" for cell in cells)


def growth(record: Record) -> str:
    """Two charts and two Markdown tables: time and memory against each size, and their exponents."""
    base, rows = record.data["configuration"]["base"], record.data["growth"]
    time, memory = [], []
    table = "| size | value | step, ms (fastest–slowest) | peak memory, MB |\n|---|---:|---:|---:|\n"
    for entry in rows:
        points = entry["points"]
        name = f"{entry['letter']}, {entry['name']}"
        label = cell(name)
        ratios = [point["size"] / base[entry["letter"]] for point in points]
        time.append(
            Line(name, [(x, 1e3 * p["seconds"]["median"]) for x, p in zip(ratios, points, strict=True)])
        )
        if all(point["memory"] for point in points):
            memory.append(Line(name, [(x, p["memory"] / 1e6) for x, p in zip(ratios, points, strict=True)]))
        for point in points:
            step = point["seconds"]
            peak = "–" if point["memory"] is None else f"{point['memory'] / 1e6:,.0f}"
            table += (
                f"| {label} | {point['size']:,} | {1e3 * step['median']:,.1f} "
                f"({1e3 * step['min']:,.1f}–{1e3 * step['max']:,.1f}) | {peak} |\n"
            )
    fits = "| scaling exponent | time, all sizes | memory, all sizes | time, last two | memory, last two "
    fits += "| predicted for time | measured, last two |\n|---|---:|---:|---:|---:|---|---|\n"
    for entry in rows:
        fits += f"| {cell(entry['name'])} | {exponents(entry, 'all')} | {exponents(entry, 'last')} "
        fits += f"| {describe_exponent(entry)} |\n"
    at = ", ".join(f"{letter} = {size:,}" for letter, size in base.items())
    scale_note = f"All curves meet at {at}. Both axes are logarithmic, so a power law is a straight line."
    titles = ("Time of a training step, in milliseconds", "Peak memory of a training step, in megabytes")
    charts = [
        line_chart(
            lines, title, "multiple of the base size", unit, caption=f"{title}. {scale_note}", log=True
        )
        for lines, title, unit in zip((time, memory), titles, ("ms", "MB"), strict=True)
        if lines
    ]
    return "\n\n".join([*charts, wide(fits), table])


def feeding(record: Record) -> str:
    """Drawing batches from more and more text, as a Markdown table and two sentences."""
    rows = record.data["feeding"]
    table = "| text, MB | pipeline | tokens | preparation, s | batch, ms | anonymous memory, MB "
    table += "| file pages, MB |\n|---:|---|---:|---:|---:|---:|---:|\n"
    names = {"pairs": "sentence pairs from disk", "masked": "masked windows from memory"}
    for row in rows:
        cells = (f"{row[name] / 1e6:,.1f}" if name in row else "–" for name in ("anonymous", "file"))
        table += (
            f"| {row['characters'] / 1e6:g} | {names[row['pipeline']]} | {row['tokens']:,} "
            f"| {row['prepare_seconds']:,.1f} | {1e3 * row['batch_seconds']:,.2f} | {' | '.join(cells)} |\n"
        )
    table = wide(table)
    sentences = []
    for pipeline, name in names.items():
        mine = [row for row in rows if row["pipeline"] == pipeline and "anonymous" in row]
        if len(mine) > 1:
            first, last = mine[0], mine[-1]
            more = last["anonymous"] - first["anonymous"]
            each = more / (last["tokens"] - first["tokens"])
            sentences.append(
                f"From the smallest text to the largest, the anonymous memory of {name} changes by "
                f"{more / 1e6:+,.1f} MB, which is {each:+.2f} bytes per additional token."
            )
    return f"{table}\n{' '.join(sentences)}\n"


def cost(record: Record) -> str:
    """Everything in the record, as Markdown."""
    rounds = cell(record.data["configuration"]["rounds"])
    return (
        f"{provenance(record)} Each time is the median of {rounds} rounds, in which all values of one size "
        f"took turns.\n\n{growth(record)}\n\n#### More text\n\n{feeding(record)}"
    )
