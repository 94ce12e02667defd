"""
# Figures of attention

Three figures from one record of `experiments/attention_map.py`: the sentence with its mask filled in, where
each head attends at the masked position, and all attention weights of one head. Each weight is drawn as
the area of a square, so you can read the weights without color.
"""

import math
from collections import Counter
from pathlib import Path

from markupsafe import Markup

from docs.figures.records import Record
from docs.literate.chart import figure, numbers, text
from docs.literate.rows import PageError
from docs.literate.templates import renderer

Weights = list[list[float]]
CELL = 18
LEFT = 84
TOP = 28
render = renderer(Path(__file__).parent / "templates")


def result(record: Record) -> dict[str, object]:
    """The attention map in a record. Raises `PageError` if there is none."""
    data = record.data.get("result", {})
    if "pictures" in record.data:
        # The live page's sentence has one mask, so its record has one list of guesses.
        data = dict(record.data["pictures"]["attention"])
        data["guesses"] = [data["guesses"]]
    if "attentions" not in data:
        raise PageError(
            f"the run {record.name} has no attention weights; experiments/attention_map.py records them"
        )
    assert isinstance(data, dict)
    return data


def visible(token: str) -> str:
    """A visible stand-in for a token: a bar for the mask, a dot for a space."""
    return {"[MASK]": "▁", " ": "·", "\n": "↵"}.get(token, token)


def spell(token: str) -> str:
    """A token as a screen reader should say it."""
    return {"[MASK]": "[MASK]", " ": "space", "\n": "line break"}.get(token, token)


def predictions(record: Record) -> Markup:
    """The sentence with each guess in the position of the mask, best first, with its probability."""
    data = result(record)
    tokens, masks, guesses = data["tokens"], data["masks"], data["guesses"]
    assert isinstance(tokens, list) and isinstance(masks, list) and isinstance(guesses, list)
    # A word tokenizer removes the spaces, so put them back.
    gap = " " if any(len(token) > 1 and token != "[MASK]" for token in tokens) else ""
    before, after = gap.join(tokens[: masks[0]]) + gap, gap + gap.join(tokens[masks[0] + 1 :])
    predictions_by_token = [(visible(token), probability) for token, probability in guesses[0]]
    return render("filled.html", before=before, after=after, guesses=predictions_by_token)


def square(x: float, y: float, weight: float) -> str:
    """A square around the middle of a cell, whose area is the attention weight."""
    side = (CELL - 1) * math.sqrt(weight)
    return f'<path d="M{x - side / 2:.1f},{y - side / 2:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z"/>'


def letters(tokens: list[str], y: float) -> str:
    """The tokens in a row above the columns."""
    return Markup("").join(
        text(LEFT + (i + 0.5) * CELL, y, visible(token)[:1], _class="token", text_anchor="middle")
        for i, token in enumerate(tokens)
    )


def strongest(row: list[float], many: int) -> list[int]:
    """The positions with the largest attention weights, largest first."""
    return sorted(range(len(row)), key=lambda position: -row[position])[:many]


def mask_rows(record: Record) -> Markup:
    """Where each head attends at the first masked position: a row for each head, a column for each token."""
    data = result(record)
    tokens, layers = data["tokens"], data["attentions"]
    masks = data["masks"]
    assert isinstance(tokens, list) and isinstance(layers, list) and isinstance(masks, list)
    position = masks[0]
    parts, rows, y = [letters(tokens, TOP - 9)], list[list[str]](), float(TOP)
    for i, layer in enumerate(layers):
        parts.append(f'<text x="0" y="{y + len(layer) * CELL / 2 + 5:.1f}">layer {i + 1}</text>')
        parts.append(f'<path class="grid" d="M{LEFT},{y:.1f}H{LEFT + len(tokens) * CELL}"/>')
        for j, weights in enumerate(layer):
            row = weights[position]
            middle = y + CELL / 2
            squares = (square(LEFT + (k + 0.5) * CELL, middle, w) for k, w in enumerate(row) if w >= 0.005)
            parts.append(f'<g class="weight n{i % 4 + 1}">{"".join(squares)}</g>')
            best = (f"{spell(tokens[k])}, {k - position:+d}: {row[k]:.0%}" for k in strongest(row, 3))
            rows.append([f"layer {i + 1}, head {j + 1}", *best])
            y += CELL
        y += 6
    x = LEFT + position * CELL
    parts.append(f'<path class="hole" d="M{x},4h{CELL}V{y - 4:.1f}h-{CELL}z"/>')
    near = sum(sum(w[position][max(0, position - 2) : position + 3]) for layer in layers for w in layer)
    heads = sum(len(layer) for layer in layers)
    caption = (
        f"Where each of the {heads} heads looks from the masked position, which is framed. The area of a "
        "square is the attention weight. On average over the heads, the position itself and two on either "
        f"side get {near / heads:.0%} of the attention. Uniform attention would give them "
        f"{5 / len(tokens):.0%}."
    )
    story = f"Four heads in each of {len(layers)} layers" if heads == 4 * len(layers) else f"{heads} heads"
    return figure(
        "".join(parts),
        y,
        "Attention weights at the masked position, by head",
        f"{story}. The largest attention weights are in the table below.",
        caption,
        below=numbers(["head", "largest weight", "second", "third"], rows),
        width=LEFT + len(tokens) * CELL + 2,
        kind="attention",
    )


def most_focused(layers: list[list[Weights]]) -> tuple[int, int]:
    """The layer and the head whose rows have the largest sum of maximum weights."""
    heads = [(i, j) for i, layer in enumerate(layers) for j in range(len(layer))]
    return max(heads, key=lambda at: sum(max(row) for row in layers[at[0]][at[1]]))


def head_map(record: Record) -> Markup:
    """The most focused head: a row for each query, a column for each key."""
    data = result(record)
    tokens, layers = data["tokens"], data["attentions"]
    assert isinstance(tokens, list) and isinstance(layers, list)
    i, j = most_focused(layers)
    weights: Weights = layers[i][j]
    parts, rows = [letters(tokens, TOP - 9)], []
    for line, row in enumerate(weights):
        y = TOP + (line + 0.5) * CELL
        letter = visible(tokens[line])[:1]
        parts.append(text(LEFT - 12, f"{y + 5:.1f}", letter, _class="token", text_anchor="middle"))
        squares = (square(LEFT + (k + 0.5) * CELL, y, w) for k, w in enumerate(row) if w >= 0.01)
        parts.append(f'<g class="weight n{i % 4 + 1}">{"".join(squares)}</g>')
        best = strongest(row, 1)[0]
        query, key = (f"{position + 1}: {spell(tokens[position])}" for position in (line, best))
        rows.append([query, key, f"{row[best]:.0%}"])
    offsets = Counter(strongest(row, 1)[0] - line for line, row in enumerate(weights))
    offset, times = offsets.most_common(1)[0]
    side = "before" if offset < 0 else "after"
    distance = "right" if abs(offset) == 1 else f"{abs(offset)} positions"
    where = "the token itself" if offset == 0 else f"the token {distance} {side} it"
    most = f"For {times} of the {len(tokens)} tokens, the largest weight is on {where}."
    story = f"Layer {i + 1}, head {j + 1}. {most}"
    caption = f"{story} The rows are queries, and the columns are keys."
    return figure(
        "".join(parts),
        TOP + len(tokens) * CELL + 4,
        f"Attention weights of layer {i + 1}, head {j + 1}",
        story,
        caption,
        below=numbers(["token", "attends most to", "weight"], rows),
        width=LEFT + len(tokens) * CELL + 2,
        kind="attention",
    )
