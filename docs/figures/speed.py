r"""
# A record of speed

What stands below `experiments/speed/speed.py`: for each model all arms beside each other, the pieces of its
layers under the roof of the machine, and where the time of our step goes.

The roof is that of [Williams and others](https://doi.org/10.1145/1498765.1498785). A piece that does $i$
operations on each byte that it moves can do at most

$$\min(\text{operations a second of a large product},\; i \cdot \text{bytes a second})$$
"""

from typing import Any

from docs.figures.records import Record, made
from docs.literate.chart import HEIGHT, Axes, Bar, axes, bar_chart, figure, numbers, text
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError

REFERENCE = "transformers sdpa, float32"
PEAKS = ("bfloat16", "float32")


def precision(arm: str) -> str:
    """What an arm multiplies in."""
    return "bfloat16" if "bfloat16" in arm else "float32"


def best_row(record: Record, shape: str, arm: str) -> dict[str, Any]:
    """
    The row of an arm at the first dropout that was measured, with its `share` of the peak.

    Raises `PageError` where there is none.
    """
    for found in record.data["speed"]:
        for row in found["rows"]:
            if (found["shape"]["name"], row["arm"]) == (shape, arm):
                share = row["operations_per_second"] / record.data["peaks"][precision(arm)]
                return {**row, "share": share, "length": found["shape"]["length"]}
    raise PageError(f"the run {record.name} has no {arm!r} at the shape {shape!r}")


def worth(record: Record, shape: str, trick: str) -> float:
    """
    How many times as fast a step is with a trick, of a ledger of speed.

    Raises `PageError` where there is none.
    """
    for found in record.data["ledger"]:
        for row in found["rows"]:
            if (found["shape"]["name"], row["name"]) == (shape, trick):
                return row["worth"]
    raise PageError(f"the run {record.name} has no {trick!r} at the shape {shape!r}")


def arms(record: Record, found: dict[str, Any]) -> str:
    """One model at one dropout: bars, and the numbers as a Markdown table."""
    shape, rows = found["shape"], found["rows"]
    tokens = shape["batch_size"] * shape["length"]
    reference = next((row["step"]["median"] for row in rows if row["arm"] == REFERENCE), None)
    bars = []
    table = "| arm | step, ms | tokens/s | of the peak | memory, MB | × sdpa |\n"
    table += "|---|---:|---:|---:|---:|---:|\n"
    for row in rows:
        step = row["step"]
        ratio = "–" if reference is None else f"{reference / step['median']:.2f}"
        peak = record.data["peaks"][precision(row["arm"])]
        memory = "–" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f}"
        table += (
            f"| {cell(row['arm'])} | {1e3 * step['median']:,.1f} "
            f"({1e3 * step['min']:,.1f}–{1e3 * step['max']:,.1f}) | {row['tokens_per_second']:,.0f} "
            f"| {row['operations_per_second'] / peak:.0%} | {memory} | {ratio} |\n"
        )
        bars.append(
            Bar(
                row["arm"],
                row["tokens_per_second"],
                f"{row['tokens_per_second']:,.0f}" + ("" if reference is None else f" ({ratio} ×)"),
                kind=1 if row["arm"].startswith("ours") else 2,
                least=tokens / step["max"],
                most=tokens / step["min"],
            )
        )
    title = f"Tokens a second in training: {shape['name']}, dropout {found['dropout']:g}"
    caption = f"{title}. A thin line goes from the slowest round to the fastest."
    return (
        f"#### {cell(shape['name'])}, dropout {found['dropout']:g}\n\n"
        f"{found['parameters']:,} parameters, vocabulary {shape['vocab_size']:,}, "
        f"{shape['num_hidden_layers']} layers, {shape['hidden_size']} wide, batch {shape['batch_size']} × "
        f"{shape['length']}. The losses of one batch differ by {found['loss_difference']:.1g} at most.\n\n"
        f"{bar_chart(bars, title, caption)}\n\n{wide(table)}\n{shares(found)}\n\n"
    )


def shares(found: dict[str, Any]) -> str:
    """Where the time of our step goes, the largest part first."""
    profile = found["profile"]
    parts = sorted(profile["shares"].items(), key=lambda part: -part[1])
    bars = [Bar(name, share, f"{share:.0%}") for name, share in parts if share >= 0.005]
    title = f"Where the time goes: {profile['arm']}"
    below = numbers(["kind", "share"], [[name, f"{share:.1%}"] for name, share in parts])
    return bar_chart(bars, title, f"{title}. Kinds below half a percent are in the table.", below)


def roofline(record: Record, found: dict[str, Any]) -> str:
    """The pieces of a layer: operations a second over operations a byte, and the roofs."""
    rows, peaks, rate = found["rows"], record.data["peaks"], record.data["bytes_per_second"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    letters = dict(zip(names, "abcdefghij", strict=False))
    places = [(row["operations"] / row["bytes"], row["operations"] / row["seconds"]) for row in rows]
    left = min(x for x, _ in places) / 2
    right = max(2 * max(x for x, _ in places), 2 * peaks["bfloat16"] / rate)
    low = min(rate * left, *(y for _, y in places)) / 1.5
    high = 1.6 * max(*peaks.values(), *(y for _, y in places))
    at = Axes(left, right, low / 1e9, high / 1e9, log=True)
    parts = [axes(at, "operations a byte")]
    for style, name in enumerate(PEAKS, 1):
        start, corner, end = (
            at(x, min(peaks[name], rate * x) / 1e9) for x in (left, peaks[name] / rate, right)
        )
        roof = "L".join(f"{x:.1f},{y:.1f}" for x, y in (start, corner, end))
        parts.append(f'<path class="line n{style}" d="M{roof}"/>')
        parts.append(text(f"{end[0]:.1f}", f"{end[1] - 8:.1f}", name, text_anchor="end"))
    for row, (x, y) in zip(rows, places, strict=True):
        across, down = at(x, y / 1e9)
        style = PEAKS.index(row["precision"]) + 1
        # Letters of one precision on one side, and every other one lower: the products lie close together.
        lower = 12 if names.index(row["name"]) % 2 else 0
        shift, anchor = (9, "start") if style == 1 else (-9, "end")
        parts.append(f'<circle class="point n{style}" cx="{across:.1f}" cy="{down:.1f}" r="4.5"/>')
        at_x, at_y = f"{across + shift:.1f}", f"{down + lower:.1f}"
        parts.append(text(at_x, at_y, letters[row["name"]], text_anchor=anchor))
    key = [("", f"{letter}: {name}") for name, letter in letters.items()]
    title = f"What the machine allows and what the pieces of a layer reach: {found['shape']}"
    body = [
        [
            f"{row['name']}, {row['precision']}",
            f"{x:.1f}",
            f"{y / 1e9:,.0f}",
            f"{y / min(peaks[row['precision']], rate * x):.0%}",
            f"{1e3 * row['seconds']:.2f}",
        ]
        for row, (x, y) in zip(rows, places, strict=True)
    ]
    story = "; ".join(f"{cells[0]}: {cells[2]} at {cells[1]} operations a byte" for cells in body)
    caption = (
        f"{title}. Upwards, billions of operations a second; a filled point is bfloat16, an empty one "
        "float32. The slope is what memory can feed, the level a large product. A point above the slope "
        "found its numbers in a cache."
    )
    columns = ["piece", "operations a byte", "GFLOP/s", "of its roof", "ms"]
    story = f"Billions of operations a second over operations a byte: {story}."
    return figure("".join(parts), HEIGHT, title, story, caption, key, numbers(columns, body))


def ledger(record: Record) -> str:
    """What each trick is worth, as a Markdown table for each shape."""
    data = record.data
    parts = [
        f"{made(record)} A trick that is kept is taken out, one that is left out is put in; the "
        "number is how much faster the step is with it, the median of "
        f"{data['configuration']['rounds']} rounds in turn. Where least and most lie on both sides of 1, "
        "this run cannot tell whether it helps.\n\n"
    ]
    for found in data["ledger"]:
        shape = found["shape"]
        table = "| trick | in the code | faster by | least to most |\n|---|---|---:|---:|\n"
        for row in sorted(found["rows"], key=lambda row: (not row["kept"], -row["worth"])):
            table += (
                f"| {cell(row['name'])} | {'kept' if row['kept'] else 'left out'} | {row['worth']:.2f} × "
                f"| {row['least']:.2f} to {row['most']:.2f} |\n"
            )
        parts.append(
            f"#### {cell(shape['name'])}\n\n"
            f"Vocabulary {shape['vocab_size']:,}, {shape['hidden_size']} wide, batch "
            f"{shape['batch_size']} × {shape['length']}, dropout {shape['dropout']:g}: "
            f"{1000 * found['seconds']:.1f} ms a step, of which drawing and covering the batch is "
            f"{found['drawing'] / found['seconds']:.1%}.\n\n{table}\n"
        )
    shares = [
        f"{share:.1%} at length {cell(length)}, worth {1 / (1 - share):.2f} × at most"
        for length, share in data["padding"].items()
    ]
    parts.append(f"Padding in the pairs of `bert_tiny.py`: {'; '.join(shares)}.\n")
    return "".join(parts)


def speed(record: Record) -> str:
    """All that a record of speed holds, as Markdown."""
    data = record.data
    versions = {**data["versions"], **data["configuration"]["peers"]}
    numbered = ", ".join(cell(f"{name} {number}") for name, number in versions.items())
    return (
        f"{made(record)} In a large product this machine does "
        f"{data['peaks']['bfloat16'] / 1e9:,.0f} GFLOP/s in bfloat16 and "
        f"{data['peaks']['float32'] / 1e9:,.0f} in float32; a large copy moves "
        f"{data['bytes_per_second'] / 1e9:,.0f} GB/s. "
        f"Versions: {numbered}.\n\n"
        f"Medians of {data['configuration']['rounds']} rounds in turn, with the fastest and the slowest in "
        "brackets. A step is forward, backward, clipping and AdamW. The share of the peak counts the "
        "products that an implementation really executes: one that predicts every place does more of them, "
        "and gets no credit for what it leaves out. So the share compares a program with the machine, "
        f"and two programs are compared by time. The last column is the speed against {REFERENCE}.\n\n"
        + "".join(arms(record, found) for found in data["speed"])
        + "#### The roof\n\n"
        + "\n\n".join(roofline(record, found) for found in data["pieces"])
        + "\n"
    )
