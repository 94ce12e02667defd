r"""
# How fast it is

The figures and tables below `experiments/speed/speed.py` and `speed_ablation.py`: the variants of each model
next to each other, the ops of a layer in a roofline plot, and where the time of our step goes.

The roofline is that of [Williams et al.](https://doi.org/10.1145/1498765.1498785). An op that does $i$ FLOPs
for each byte of memory traffic can't do more FLOPs per second than

$$\min(\text{FLOP/s of a large matmul},\; i \cdot \text{bytes per second})$$
"""

import math
from typing import Any

from docs.figures.records import Record, provenance
from docs.literate.chart import (
    BOTTOM,
    HEIGHT,
    WIDTH,
    Axes,
    Bar,
    Point,
    axes,
    bar_chart,
    figure,
    fill_gaps,
    numbers,
    text,
)
from docs.literate.prose import cell, wide
from docs.literate.rows import PageError

REFERENCE = "transformers sdpa, float32"
PEAKS = ("bfloat16", "float32")


def precision(arm: str) -> str:
    """The precision of a variant's matmuls."""
    return "bfloat16" if "bfloat16" in arm else "float32"


def best_row(record: Record, shape: str, arm: str) -> dict[str, Any]:
    """
    The row of a variant at the first dropout probability that was measured, with the `milliseconds` of a step
    and its `mfu`: the fraction of the machine's peak that it reaches.

    Raises `PageError` if the record has no such row.
    """
    for entry in record.data["speed"]:
        for row in entry["rows"]:
            if (entry["shape"]["name"], row["arm"]) == (shape, arm):
                mfu = row["flops_per_second"] / record.data["peaks"][precision(arm)]
                milliseconds = 1e3 * row["step"]["median"]
                return {**row, "mfu": mfu, "milliseconds": milliseconds, "length": entry["shape"]["length"]}
    raise PageError(f"the run {record.name} has no {arm!r} at the shape {shape!r}")


def worth(record: Record, shape: str, trick: str) -> float:
    """
    The speedup of a step by one trick.

    Raises `PageError` if the record has no such trick.
    """
    for entry in record.data["ablation"]:
        for row in entry["rows"]:
            if (entry["shape"]["name"], row["name"]) == (shape, trick):
                return row["worth"]
    raise PageError(f"the run {record.name} has no {trick!r} at the shape {shape!r}")


def arms(record: Record, entry: dict[str, Any]) -> str:
    """All variants of one model at one dropout probability: bars, and the numbers as a Markdown table."""
    shape, rows = entry["shape"], entry["rows"]
    tokens = shape["batch_size"] * shape["length"]
    reference = next((row["step"]["median"] for row in rows if row["arm"] == REFERENCE), None)
    bars = []
    table = "| variant | step, ms (fastest–slowest) | tokens/s | MFU | peak memory, MB | × sdpa |\n"
    table += "|---|---:|---:|---:|---:|---:|\n"
    for row in rows:
        step = row["step"]
        ratio = "–" if reference is None else f"{reference / step['median']:.2f}"
        peak = record.data["peaks"][precision(row["arm"])]
        memory = "–" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f}"
        table += (
            f"| {cell(row['arm'])} | {1e3 * step['median']:,.1f} "
            f"({1e3 * step['min']:,.1f}–{1e3 * step['max']:,.1f}) | {row['tokens_per_second']:,.0f} "
            f"| {row['flops_per_second'] / peak:.0%} | {memory} | {ratio} |\n"
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
    title = f"Training throughput in tokens per second: {shape['name']}, dropout {entry['dropout']:g}"
    caption = f"{title}. The thin line goes from the slowest round to the fastest."
    return (
        f"#### {cell(shape['name'])}, dropout {entry['dropout']:g}\n\n"
        f"{entry['parameters']:,} parameters, vocabulary {shape['vocab_size']:,}, "
        f"{shape['num_hidden_layers']:d} layers, hidden size {shape['hidden_size']:d}, batch "
        f"{shape['batch_size']:d} × {shape['length']:d}. On one batch, our loss and those of transformers "
        f"differ by at most {entry['loss_difference']:.1g}.\n\n"
        f"{bar_chart(bars, title, caption)}\n\n{wide(table)}\n{profile_table(entry)}\n\n"
    )


def profile_table(entry: dict[str, Any]) -> str:
    """Where the time of our step goes, the largest fraction first. Empty if the record has no profile."""
    if "profile" not in entry:
        return ""
    profile = entry["profile"]
    parts = sorted(profile["fractions"].items(), key=lambda part: -part[1])
    bars = [Bar(name, fraction, f"{fraction:.0%}") for name, fraction in parts if fraction >= 0.005]
    title = f"Where the time of a step goes: {profile['arm']}"
    below = numbers(["kind of op", "fraction"], [[name, f"{fraction:.1%}"] for name, fraction in parts])
    return bar_chart(bars, title, f"{title}. Kinds below half a percent are only in the table.", below)


def letter_position(point: Point, obstacles: list[Point]) -> Point:
    """
    Finds the middle of the letter next to a point: as close to it as possible, preferably on its right, and
    16 units from all obstacles. On a phone, a letter is at most 16 units high.
    """
    x, y = point
    around = (
        (x + radius * math.cos(math.pi * turn / 8), y + radius * math.sin(math.pi * turn / 8))
        for radius in range(16, 60, 4)
        for turn in sorted(range(-7, 9), key=abs)
    )
    return next(
        (middle for middle in around if all(math.dist(middle, one) > 15.9 for one in obstacles)), (x + 16, y)
    )


def roofline(record: Record, entry: dict[str, Any]) -> str:
    """The ops of a layer: FLOP/s against FLOPs per byte, under the two limits of the machine."""
    rows, peaks, bandwidth = entry["rows"], record.data["peaks"], record.data["bytes_per_second"]
    unit, size, decimals = ("TFLOP/s", 1e12, 1) if max(peaks.values()) > 1e13 else ("GFLOP/s", 1e9, 0)
    names = list(dict.fromkeys(row["name"] for row in rows))
    letters = dict(zip(names, "abcdefghij", strict=False))
    points = [(row["flops"] / row["bytes"], row["flops"] / row["seconds"]) for row in rows]
    left = min(x for x, _ in points) / 2
    right = max(2 * max(x for x, _ in points), 2 * peaks["bfloat16"] / bandwidth)
    low = min(bandwidth * left, *(y for _, y in points)) / 1.5
    high = 1.6 * max(*peaks.values(), *(y for _, y in points))
    at = Axes(left, right, low / size, high / size, log=True)
    parts = [axes(at, "FLOPs per byte")]
    obstacles = fill_gaps([(0, HEIGHT - BOTTOM), (WIDTH, HEIGHT - BOTTOM)])
    for style, name in enumerate(PEAKS, 1):
        start, corner, end = (
            at(x, min(peaks[name], bandwidth * x) / size) for x in (left, peaks[name] / bandwidth, right)
        )
        roof = "L".join(f"{x:.1f},{y:.1f}" for x, y in (start, corner, end))
        parts.append(f'<path class="line n{style}" d="M{roof}"/>')
        # There are few points above the slope, so the name of a limit is left of its corner.
        parts.append(text(f"{corner[0]:.1f}", f"{corner[1] - 6:.1f}", name, text_anchor="end"))
        obstacles += fill_gaps([start, corner, end])
        obstacles += [(corner[0] - 11 * i, corner[1] - 12) for i in range(len(name))]
    circles = [at(x, y / size) for x, y in points]
    obstacles += circles
    for row, (x, y) in zip(rows, circles, strict=True):
        style = PEAKS.index(row["precision"]) + 1
        parts.append(f'<circle class="point n{style}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        middle = letter_position((x, y), obstacles)
        obstacles.append(middle)
        letter = letters[row["name"]]
        parts.append(text(f"{middle[0]:.1f}", f"{middle[1]:.1f}", letter, text_anchor="middle", dy="0.3em"))
    key = [("", f"{letter}: {name}") for name, letter in letters.items()]
    title = f"Roofline of the ops of a layer: {entry['shape']}"
    body = [
        [
            f"{row['name']}, {row['precision']}",
            f"{x:.1f}",
            f"{y / size:,.{decimals}f}",
            f"{y / min(peaks[row['precision']], bandwidth * x):.0%}",
            f"{1e3 * row['seconds']:.2f}",
        ]
        for row, (x, y) in zip(rows, points, strict=True)
    ]
    story = "; ".join(f"{cells[0]}: {cells[2]} at {cells[1]} FLOPs per byte" for cells in body)
    caption = (
        f"{title}. The vertical axis is {unit}. Filled points are bfloat16, empty ones float32. The sloping "
        "line is the limit of the memory bandwidth, the level lines are the speed of a large matmul. An op "
        "above the sloping line found its inputs in a cache."
    )
    columns = ["op", "FLOPs per byte", unit, "of its limit", "ms"]
    story = f"{unit} against FLOPs per byte: {story}."
    return figure("".join(parts), HEIGHT, title, story, caption, key, numbers(columns, body))


def ablation(record: Record) -> str:
    """The speedup by each trick, as a Markdown table for each shape."""
    data = record.data
    rounds = cell(data["configuration"]["rounds"])
    parts = [
        f"{provenance(record)} Each speedup compares a step with the trick and without it: the median of "
        f"{rounds} rounds in which both took turns. If the rounds fall on both "
        "sides of 1, this run can't tell whether the trick helps.\n\n"
    ]
    for entry in data["ablation"]:
        shape = entry["shape"]
        table = "| trick | in our code | speedup | slowest to fastest round |\n|---|---|---:|---:|\n"
        for row in sorted(entry["rows"], key=lambda row: (not row["kept"], -row["worth"])):
            table += (
                f"| {cell(row['name'])} | {'kept' if row['kept'] else 'left out'} | {row['worth']:.2f} × "
                f"| {row['least']:.2f} to {row['most']:.2f} |\n"
            )
        parts.append(
            f"#### {cell(shape['name'])}\n\n"
            f"Vocabulary {shape['vocab_size']:,}, hidden size {shape['hidden_size']:d}, batch "
            f"{shape['batch_size']:d} × {shape['length']:d}, dropout {shape['dropout']:g}. A step takes "
            f"{1000 * entry['seconds']:.1f} ms; masking the batch takes "
            f"{entry['drawing'] / entry['seconds']:.1%} of that.\n\n{table}\n"
        )
    padding = [
        f"{fraction:.1%} at length {cell(length)}, so removing it gains at most {1 / (1 - fraction):.2f} ×"
        for length, fraction in data["padding"].items()
    ]
    parts.append(f"Padding in the sentence pairs of `bert_tiny.py`: {'; '.join(padding)}.\n")
    return "".join(parts)


def modern_steps(record: Record) -> str:
    """The speedup over ModernBERT in `transformers`, as a Markdown table."""
    data = record.data
    rounds = cell(data["configuration"]["rounds"])
    table = (
        "| model | parameters | batch | ours in bfloat16, ms | against their float32 | both bfloat16 "
        "| both float32 |\n|---|---:|---|---:|---:|---:|---:|\n"
    )
    for entry in data["modern_steps"]:
        shape, seconds = entry["shape"], {row["arm"]: row["step"]["median"] for row in entry["rows"]}
        ours = seconds["ours, bfloat16"]
        speedups = (
            seconds["transformers, float32"] / ours,
            seconds["transformers, bfloat16"] / ours,
            seconds["transformers, float32"] / seconds["ours, float32"],
        )
        table += (
            f"| {cell(shape['name'])} | {entry['parameters']:,} "
            f"| {shape['batch_size']:d} × {shape['length']:d} | {1000 * ours:,.1f} "
            f"| {' | '.join(f'{speedup:.2f} ×' for speedup in speedups)} |\n"
        )
    number = data["configuration"]["peers"]["transformers"]
    return (
        f"{provenance(record)} Each time is the median of {rounds} rounds, in which "
        "the models took turns. A step is forward, backward, clipping and AdamW. The last three columns are "
        f"speedups over `transformers` {cell(number)}.\n\n{table}\n"
    )


def speed(record: Record) -> str:
    """Everything in a record of `speed.py`, as Markdown."""
    data = record.data
    rounds = cell(data["configuration"]["rounds"])
    versions = {**data["versions"], **data["configuration"]["peers"]}
    version_list = ", ".join(cell(f"{name} {number}") for name, number in versions.items())
    return (
        f"{provenance(record)} In a large matmul this machine reaches "
        f"{data['peaks']['bfloat16'] / 1e9:,.0f} GFLOP/s in bfloat16 and "
        f"{data['peaks']['float32'] / 1e9:,.0f} in float32. A large copy moves "
        f"{data['bytes_per_second'] / 1e9:,.0f} GB/s. "
        f"Versions: {version_list}.\n\n"
        f"Each time is the median of {rounds} rounds, in which the variants took "
        "turns, with the fastest and the slowest round in parentheses. A step is forward, backward, clipping "
        "and AdamW. MFU, the model FLOPs utilization, is the FLOP/s of the matmuls that a variant executes, "
        "divided by the FLOP/s of the large matmul. A variant that predicts every position executes more "
        "matmuls, and one that skips work gets no credit for it. So use MFU to compare a variant with the "
        "machine, and time to compare two variants. The last column is the speedup over "
        f"{REFERENCE}.\n\n"
        + "".join(arms(record, entry) for entry in data["speed"])
        + "#### Roofline\n\n"
        + "\n\n".join(roofline(record, entry) for entry in data["pieces"])
        + "\n"
    )
