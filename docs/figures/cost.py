"""
# A record of growth

What stands below `experiments/speed/cost.py`: time and memory of a step against each size, and what feeding
it takes against the amount of text.
"""

from typing import Any

from docs.figures.records import Record, made
from docs.literate.chart import Line, line_chart
from docs.literate.prose import cell, wide

# The least and the most that the exponent of time should be, as the experiment says.
EXPECTED = {"T": (1, 2), "V": (0, 1), "D": (0, 2), "B": (0, 1)}


def expected(found: dict[str, Any]) -> str:
    """What the exponent of time should be, and where that of the last two sizes lies, as cells of a table."""
    low, high = EXPECTED[found["letter"]]
    last = found["exponents"]["seconds"]["last"]
    if last > high:
        where = f"{last - high:.2f} too high"
    elif last < low:
        where = f"{low - last:.2f} too low"
    else:
        where = f"{high - last:.2f} under {high}"
    return f"{f'{low} to' if low else 'at most'} {high} | {where}"


def exponents(found: dict[str, Any], which: str) -> str:
    """Those of time and of memory, as cells of a table."""
    cells = (found["exponents"].get(name) for name in ("seconds", "memory"))
    return " | ".join("–" if cell is None else f"{cell[which]:.2f}" for cell in cells)


def growth(record: Record) -> str:
    """Two charts and a Markdown table of the sizes of the model and its batch."""
    base, rows = record.data["configuration"]["base"], record.data["growth"]
    time, memory = [], []
    table = "| what | size | step, ms | memory, MB |\n|---|---:|---:|---:|\n"
    for found in rows:
        points = found["points"]
        name = f"{found['letter']}, {found['name']}"
        named = cell(name)
        places = [point["size"] / base[found["letter"]] for point in points]
        time.append(
            Line(name, [(x, 1e3 * p["seconds"]["median"]) for x, p in zip(places, points, strict=True)])
        )
        if all(point["memory"] for point in points):
            memory.append(Line(name, [(x, p["memory"] / 1e6) for x, p in zip(places, points, strict=True)]))
        for point in points:
            step = point["seconds"]
            weighs = "–" if point["memory"] is None else f"{point['memory'] / 1e6:,.0f}"
            table += (
                f"| {named} | {point['size']:,} | {1e3 * step['median']:,.1f} "
                f"({1e3 * step['min']:,.1f}–{1e3 * step['max']:,.1f}) | {weighs} |\n"
            )
    fits = "| exponent of | time, all sizes | memory, all | time, last two | memory, last two "
    fits += "| expected of time | last two |\n|---|---:|---:|---:|---:|---|---|\n"
    for found in rows:
        fits += f"| {cell(found['name'])} | {exponents(found, 'all')} | {exponents(found, 'last')} "
        fits += f"| {expected(found)} |\n"
    at = ", ".join(f"{letter} {size:,}" for letter, size in base.items())
    about = f"All lines cross at {at}. Both axes are logarithms, so that a power is a straight line."
    titles = ("Milliseconds of a training step", "Megabytes that a training step takes")
    charts = [
        line_chart(
            lines, title, "times the size at the crossing", unit, caption=f"{title}. {about}", log=True
        )
        for lines, title, unit in zip((time, memory), titles, ("ms", "MB"), strict=True)
        if lines
    ]
    return "\n\n".join([*charts, wide(fits), table])


def feeding(record: Record) -> str:
    """Against the amount of text, as a Markdown table, and what follows from it."""
    rows = record.data["feeding"]
    table = (
        "| text, MB | fed | tokens | prepared in, s | a batch, ms | anonymous, MB | pages of files, MB |\n"
    )
    table += "|---:|---|---:|---:|---:|---:|---:|\n"
    names = {"pairs": "pairs from disk", "masked": "tokens in memory"}
    for row in rows:
        weighs = (f"{row[name] / 1e6:,.1f}" if name in row else "–" for name in ("anonymous", "file"))
        table += (
            f"| {row['characters'] / 1e6:g} | {names[row['pipeline']]} | {row['tokens']:,} "
            f"| {row['prepare_seconds']:,.1f} | {1e3 * row['batch_seconds']:,.2f} | {' | '.join(weighs)} |\n"
        )
    table = wide(table)
    words = []
    for pipeline, name in names.items():
        mine = [row for row in rows if row["pipeline"] == pipeline and "anonymous" in row]
        if len(mine) > 1:
            first, last = mine[0], mine[-1]
            more = last["anonymous"] - first["anonymous"]
            each = more / (last["tokens"] - first["tokens"])
            words.append(
                f"From the least text to the most, {name} take {more / 1e6:+,.1f} MB of anonymous memory, "
                f"{each:+.2f} bytes for each further token."
            )
    return f"{table}\n{' '.join(words)}\n"


def cost(record: Record) -> str:
    """All that a record of growth holds, as Markdown."""
    rounds = record.data["configuration"]["rounds"]
    return (
        f"{made(record)} Medians of {rounds} rounds, all sizes of one kind in turn.\n\n"
        f"{growth(record)}\n\n#### More text\n\n{feeding(record)}"
    )
