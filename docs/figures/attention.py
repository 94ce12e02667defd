"""
# Pictures of attention

Three figures from one record of `experiments/attention_map.py`: the sentence with its hole filled in, what
each head takes for the hidden place, and one head as a whole. A share is drawn as a square of that
area, so that it can be read without color.
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
    """The map in a record. Raises `PageError` where there is none."""
    found = record.data.get("result", {})
    if "pictures" in record.data:
        # That of the page's model has one mask, and so one list of guesses.
        found = dict(record.data["pictures"]["attention"])
        found["guesses"] = [found["guesses"]]
    if "attentions" not in found:
        raise PageError(
            f"the run {record.name} has no attention weights; experiments/attention_map.py makes them"
        )
    assert isinstance(found, dict)
    return found


def visible(token: str) -> str:
    """A token as it can be seen: a mask is a hole, a blank a dot."""
    return {"[MASK]": "▁", " ": "·", "\n": "↵"}.get(token, token)


def spoken(token: str) -> str:
    """A token as it can be said."""
    return {"[MASK]": "the mask", " ": "a blank", "\n": "a line end"}.get(token, token)


def predictions(record: Record) -> Markup:
    """The sentence with each guess in its hole, best first, and how sure the model is."""
    found = result(record)
    tokens, places, guesses = found["tokens"], found["masks"], found["guesses"]
    assert isinstance(tokens, list) and isinstance(places, list) and isinstance(guesses, list)
    # A tokenizer of words has lost the blanks.
    gap = " " if any(len(token) > 1 and token != "[MASK]" for token in tokens) else ""
    before, after = gap.join(tokens[: places[0]]) + gap, gap + gap.join(tokens[places[0] + 1 :])
    shown = [(visible(token), probability) for token, probability in guesses[0]]
    return render("filled.html", before=before, after=after, guesses=shown)


def square(x: float, y: float, share: float) -> str:
    """A square around the middle of a cell, of an area that is the share."""
    side = (CELL - 1) * math.sqrt(share)
    return f'<path d="M{x - side / 2:.1f},{y - side / 2:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z"/>'


def letters(tokens: list[str], y: float) -> str:
    """The tokens in a row above the columns."""
    return Markup("").join(
        text(LEFT + (i + 0.5) * CELL, y, visible(token)[:1], _class="token", text_anchor="middle")
        for i, token in enumerate(tokens)
    )


def strongest(row: list[float], many: int) -> list[int]:
    """The places with the largest shares, largest first."""
    return sorted(range(len(row)), key=lambda place: -row[place])[:many]


def mask_rows(record: Record) -> Markup:
    """What each head takes for the first hidden place: one line a head, one column a token."""
    found = result(record)
    tokens, layers = found["tokens"], found["attentions"]
    places = found["masks"]
    assert isinstance(tokens, list) and isinstance(layers, list) and isinstance(places, list)
    place = places[0]
    parts, rows, y = [letters(tokens, TOP - 9)], list[list[str]](), float(TOP)
    for i, layer in enumerate(layers):
        parts.append(f'<text x="0" y="{y + len(layer) * CELL / 2 + 5:.1f}">layer {i + 1}</text>')
        parts.append(f'<path class="grid" d="M{LEFT},{y:.1f}H{LEFT + len(tokens) * CELL}"/>')
        for j, weights in enumerate(layer):
            row = weights[place]
            middle = y + CELL / 2
            marks = (square(LEFT + (k + 0.5) * CELL, middle, w) for k, w in enumerate(row) if w >= 0.005)
            parts.append(f'<g class="share n{i % 4 + 1}">{"".join(marks)}</g>')
            best = (f"{spoken(tokens[k])}, {k - place:+d}: {row[k]:.0%}" for k in strongest(row, 3))
            rows.append([f"layer {i + 1}, head {j + 1}", *best])
            y += CELL
        y += 6
    x = LEFT + place * CELL
    parts.append(f'<path class="hole" d="M{x},4h{CELL}V{y - 4:.1f}h-{CELL}z"/>')
    near = sum(sum(w[place][max(0, place - 2) : place + 3]) for layer in layers for w in layer)
    heads = sum(len(layer) for layer in layers)
    caption = (
        f"What each of the {heads} heads takes for the framed place. The area of a square is its share. "
        f"The place itself and two on either side get {near / heads:.0%}, over all heads; an even mixture "
        f"would give them {5 / len(tokens):.0%}."
    )
    story = f"Four heads in each of {len(layers)} layers" if heads == 4 * len(layers) else f"{heads} heads"
    return figure(
        "".join(parts),
        y,
        "Attention weights of the hidden place, by head",
        f"{story}; the shares are in the table below.",
        caption,
        below=numbers(["head", "most", "second", "third"], rows),
        width=LEFT + len(tokens) * CELL + 2,
        kind="attention",
    )


def most_focused(layers: list[list[Weights]]) -> tuple[int, int]:
    """Layer and head whose places put most of their weight on one place each."""
    heads = [(i, j) for i, layer in enumerate(layers) for j in range(len(layer))]
    return max(heads, key=lambda at: sum(max(row) for row in layers[at[0]][at[1]]))


def head_map(record: Record) -> Markup:
    """The head with the sharpest look: one line a token that looks, one column a token looked at."""
    found = result(record)
    tokens, layers = found["tokens"], found["attentions"]
    assert isinstance(tokens, list) and isinstance(layers, list)
    i, j = most_focused(layers)
    weights: Weights = layers[i][j]
    parts, rows = [letters(tokens, TOP - 9)], []
    for line, row in enumerate(weights):
        y = TOP + (line + 0.5) * CELL
        letter = visible(tokens[line])[:1]
        parts.append(text(LEFT - 12, f"{y + 5:.1f}", letter, _class="token", text_anchor="middle"))
        marks = (square(LEFT + (k + 0.5) * CELL, y, w) for k, w in enumerate(row) if w >= 0.01)
        parts.append(f'<g class="share n{i % 4 + 1}">{"".join(marks)}</g>')
        best = strongest(row, 1)[0]
        looks, most = (f"{place + 1}: {spoken(tokens[place])}" for place in (line, best))
        rows.append([looks, most, f"{row[best]:.0%}"])
    offsets = Counter(strongest(row, 1)[0] - line for line, row in enumerate(weights))
    offset, times = offsets.most_common(1)[0]
    side = "to the left" if offset < 0 else "to the right"
    where = "itself" if offset == 0 else f"the token {abs(offset)} {side}"
    most = f"In {times} of {len(tokens)} lines the largest square is that of {where}."
    caption = f"Layer {i + 1}, head {j + 1}. {most}"
    return figure(
        "".join(parts),
        TOP + len(tokens) * CELL + 4,
        f"Attention weights of layer {i + 1}, head {j + 1}",
        caption,
        caption,
        below=numbers(["looks", "most at", "share"], rows),
        width=LEFT + len(tokens) * CELL + 2,
        kind="attention",
    )
