"""
# Figures for the live page

These figures are drawn from a record of `experiments/live/live.py`: the curves of its three runs, where each
head attends in one sentence, which positions are similar, what the dense layer of the head does, and which
tokens have similar embeddings. They also serve readers who can't run the model: on paper, or without
JavaScript.
"""

import math
from collections import Counter
from typing import Any

from markupsafe import Markup

from docs.figures.attention import strongest, visible
from docs.figures.records import Record
from docs.literate.chart import WIDTH, Bar, Line, bar_chart, figure, line_chart, numbers, text
from docs.literate.prose import cell
from docs.literate.rows import PageError


def picture(record: Record, name: str) -> Any:
    """The data of one figure. Raises `PageError` if the record has none."""
    try:
        return record.data["pictures"][name]
    except KeyError:
        raise PageError(
            f"the run {record.name} has no picture {name!r}; experiments/live/live.py records them"
        ) from None


def curves(record: Record) -> Markup:
    """The held-out loss of the three runs, by steps of training."""
    fixed, modern = (Record(record.name, record.data[name]) for name in ("fixed", "modern"))
    runs = {"BERT, short to long": record, "BERT, fixed length": fixed, "modern encoder": modern}
    lines = [Line(name, run.curve("valid.loss", "steps")) for name, run in runs.items()]
    baselines = [(baseline["name"], baseline["loss"]) for baseline in record.data["baselines"]]
    title = "Held-out loss of the page's three models"
    caption = f"{title}, by steps of training. The dotted lines are baselines that only count."
    for name, run in runs.items():
        if run.has_partial_curve:
            loss = run.data["result"]["loss"]
            caption += f" The curve of “{name}” was computed on part of the held-out text. On all of it, the "
            caption += f"final loss is {loss:.2f}."
    return line_chart(lines, title, "steps of training", "loss, nats per masked token", baselines, caption)


def moments(record: Record, full: Record | None) -> str:
    """The checkpoints as a Markdown table, and below them the result of a larger model, `full`."""
    rows = "".join(
        f"| {cell(entry['arm'])} | {entry['seconds']:.0f} | {entry['steps']:,} | {entry['loss']:.3f} "
        f"| {entry['accuracy']:.1%} | {entry['bytes'] / 1e3:,.0f} |\n"
        for entry in record.data["checkpoints"]
    )
    if full is not None:
        ours = full.data["result"]
        rows += (
            f"| `{full.name}.py`, {full.data['parameters']:,} parameters | {ours['training_seconds']:.0f} "
            f"| {ours['steps']:,} | {ours['loss']:.3f} | {ours['accuracy']:.1%} | – |\n"
        )
    return (
        "| model | seconds | steps | held-out loss, nats | accuracy | kB |\n"
        "|---|---:|---:|---:|---:|---:|\n" + rows
    )


def offset_in_words(offset: int) -> str:
    """The offset between two positions, in words."""
    side = "left" if offset < 0 else "right"
    return "itself" if offset == 0 else f"{abs(offset)} to the {side}"


def attention(record: Record) -> Markup:
    """One small map for each head: a row for each query, a column for each key."""
    data = picture(record, "attention")
    tokens, layers, mask = data["tokens"], data["attentions"], data["masks"][0]
    wide, top = WIDTH / len(layers[0]), 26
    cell = (wide - 12) / len(tokens)
    size = cell * len(tokens)
    parts, rows = list[str](), list[list[str]]()
    for i, layer in enumerate(layers):
        for j, head in enumerate(layer):
            x, y = j * wide + 1, i * (size + top + 10) + top
            parts.append(text(f"{x:.1f}", f"{y - 6:.1f}", f"head {i + 1}.{j + 1}"))
            parts.append(
                f'<path class="grid" fill="none" d="M{x:.1f},{y:.1f}h{size:.1f}v{size:.1f}h-{size:.1f}z"/>'
            )
            parts.append(
                f'<path class="hole" d="M{x:.1f},{y + mask * cell:.1f}h{size:.1f}v{cell:.1f}h-{size:.1f}z"/>'
            )
            # One path per head: a thousand squares would otherwise be a thousand elements.
            squares = "".join(
                square_at(x + (b + 0.5) * cell, y + (a + 0.5) * cell, cell * math.sqrt(weight))
                for a, line in enumerate(head)
                for b, weight in enumerate(line)
                if weight >= 0.03
            )
            parts.append(f'<path class="weight n{i % 4 + 1}" d="{squares}"/>')
            offsets = Counter(strongest(line, 1)[0] - a for a, line in enumerate(head))
            offset, times = offsets.most_common(1)[0]
            best = strongest(head[mask], 1)[0]
            rows.append(
                [
                    f"layer {i + 1}, head {j + 1}",
                    f"{offset_in_words(offset)}, {times} of {len(tokens)}",
                    f"{visible(tokens[best])}, {offset_in_words(best - mask)}: {head[mask][best]:.0%}",
                ]
            )
    sentence = "".join(map(visible, tokens))
    caption = (
        f"Where each head attends in “{sentence}”. Head 1.2 is the second head of the first layer. A row is "
        "a token that attends, a column is a token that it attends to, and the area of a square is the "
        "attention weight. The dashed frame is the row of the masked character."
    )
    columns = ["head", "most often attends most to", "at the masked character"]
    return figure(
        "".join(parts),
        round(len(layers) * (size + top + 10)),
        "Attention weights of every head on one sentence",
        f"{len(layers)} layers of {len(layers[0])} heads. The table says where the largest weights are.",
        caption,
        below=numbers(columns, rows),
        kind="attention",
    )


def square_at(x: float, y: float, side: float) -> str:
    """A square around a point, as a part of a path."""
    return f"M{x - side / 2:.1f},{y - side / 2:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z"


def positions(record: Record) -> Markup:
    """Cosines between position embeddings: filled squares for positive ones, hollow for negative ones."""
    data = picture(record, "positions")
    cosines, by_distance = data["cosines"], data["by_distance"]
    left, top = 56, 26
    cell = (WIDTH - left - 2) / len(cosines)
    full, hollow, parts = "", "", list[str]()
    for a, line in enumerate(cosines):
        for b, cosine in enumerate(line):
            x, y = left + (b + 0.5) * cell, top + (a + 0.5) * cell
            if cosine >= 0.05:
                full += square_at(x, y, (cell - 1) * math.sqrt(cosine))
            elif cosine <= -0.05:
                hollow += square_at(x, y, max(1.0, (cell - 1) * math.sqrt(-cosine) - 2))
        if a % 8 == 0:
            middle = (a + 0.5) * cell
            parts.append(text(left - 8, f"{top + middle + 5:.1f}", f"{a}", text_anchor="end"))
            parts.append(text(f"{left + middle:.1f}", top - 8, f"{a}", text_anchor="middle"))
    parts.append(f'<path class="weight n1" d="{full}"/><path class="point n2" d="{hollow}"/>')
    distances = [distance for distance in (1, 2, 4, 8, 16, 32, 64) if distance < len(by_distance)]
    rows = [[f"{distance}", f"{by_distance[distance]:+.2f}"] for distance in distances]
    caption = (
        f"Cosine similarity between the embeddings of the first {len(cosines)} of {len(by_distance)} "
        "positions. A filled square is a positive cosine, a hollow square a negative one, and the area is "
        "its absolute value."
    )
    return figure(
        "".join(parts),
        round(top + len(cosines) * cell + 4),
        "Cosines between position embeddings",
        f"The mean cosine of neighboring positions is {by_distance[1]:.2f}. The table has other distances.",
        caption,
        below=numbers(["positions apart", "mean cosine"], rows),
        kind="attention",
    )


def dense_layer(record: Record) -> Markup:
    """The rank of the correct token, with the dense layer and LayerNorm of the head and without them."""
    data = picture(record, "dense_layer")
    count, bars = data["positions"], []
    for i, (low, high) in enumerate(data["rank_bounds"]):
        rank = (
            f"rank {low}"
            if low == high
            else f"ranks {low} to {high}"
            if high < 1000
            else f"rank {low} or lower"
        )
        for kind, arm in ((2, "without"), (1, "with")):
            fraction = data[arm]["ranks"][i] / count
            bars.append(Bar(f"{rank}, {arm} the dense layer", fraction, f"{fraction:.1%}", kind))
    rows = [
        ["accuracy of the best guess", *(f"{data[arm]['accuracy']:.1%}" for arm in ("without", "with"))],
        [
            "median rank of the correct token",
            *(f"{data[arm]['median_rank']}" for arm in ("without", "with")),
        ],
        ["entropy of the prediction, nats", *(f"{data[arm]['entropy']:.2f}" for arm in ("without", "with"))],
        [
            "cosine to the correct embedding",
            *(f"{data[arm]['cosine_correct']:+.2f}" for arm in ("without", "with")),
        ],
        [
            "mean cosine to all embeddings",
            *(f"{data[arm]['cosine_all']:+.2f}" for arm in ("without", "with")),
        ],
    ]
    title = f"Rank of the correct token at {count:,} masked positions"
    accuracies = [f"{data[arm]['accuracy']:.0%}" for arm in ("without", "with")]
    caption = (
        f"{title}. “Without” compares the embeddings with the vector that leaves the last layer, and “with” "
        "compares them with the same vector after the dense layer and the LayerNorm of the head. The "
        f"accuracy is {accuracies[0]} without these two parts and {accuracies[1]} with them."
    )
    return bar_chart(bars, title, caption, numbers(["measure", "without", "with"], rows))


def neighbors(record: Record) -> Markup:
    """Some tokens, each with the tokens whose embeddings have the largest cosine to its own."""
    data = picture(record, "neighbors")
    row, left = 54, 72
    many = max(len(entry["nearest"]) for entry in data)
    wide = (WIDTH - left) / many
    parts, rows = list[str](), list[list[str]]()
    for i, entry in enumerate(data):
        y = i * row + 26
        parts.append(text(8, y, visible(entry["token"]), _class="token"))
        for j, (token, cosine) in enumerate(entry["nearest"]):
            x, length = left + j * wide, (wide - 14) * max(0.0, cosine)
            parts.append(text(f"{x:.1f}", y, visible(token), _class="token"))
            parts.append(f'<path class="grid" d="M{x:.1f},{y + 11}h{wide - 14:.1f}"/>')
            parts.append(f'<path class="bar n1" d="M{x:.1f},{y + 8}h{length:.1f}v6h-{length:.1f}z"/>')
        nearest = (f"{visible(token)} {cosine:.2f}" for token, cosine in entry["nearest"])
        rows.append([visible(entry["token"]), *nearest])
    first = data[0]
    caption = (
        "Some tokens on the left, and the tokens with the most similar embeddings beside them. A bar is the "
        "cosine; the line under it has length 1. The dot is a space."
    )
    names = [
        "token",
        "nearest",
        *(f"{n}th" if n > 3 else ("second", "third")[n - 2] for n in range(2, many + 1)),
    ]
    return figure(
        "".join(parts),
        row * len(data),
        "Nearest neighbors of some token embeddings",
        f"Nearest to {visible(first['token'])} is {visible(first['nearest'][0][0])}. The table has the rest.",
        caption,
        below=numbers(names, rows),
    )
