"""
# Self-attention at one position

One query is compared with the key of each token, and the values are averaged.
"""

import math

import torch

from docs.figures.diagrams.drawing import SMALL, Drawing, Words
from docs.figures.diagrams.sentence import MASKED, POSITION
from docs.figures.example import format_number

# Invented vectors of two numbers. The query is that of [MASK], and each token has a key.
QUERY = torch.tensor([1.0, 1.0])
KEYS = torch.tensor([[0.0, 0], [0, -1], [2, 2], [0, 1], [1, 1], [0, -1], [1, 0], [-1, 0]])


def attention(d: Drawing) -> Words:
    """The scores and weights of one query, and the weighted sum of the values."""
    scores = KEYS @ QUERY / math.sqrt(len(QUERY))
    weights = scores.softmax(0)
    best = MASKED[int(weights.argmax())]
    if d.is_narrow:
        token_width, key, score, softmax, weight, bar, value, bus = 54, 62, 111, 137, 223, 241, 284, 324
        softmax_width, bar_width, size, cell = 60, 26, 11.5, 12.0
    else:
        token_width, key, score, softmax, weight, bar, value, bus = 76, 120, 218, 262, 392, 420, 560, 630
        softmax_width, bar_width, size, cell = 84, 110, 13.5, 14.0
    step, top, center = 36, 92, key + cell

    query = d.cells(key, 4, 1, 2, (cell, cell), "masked")
    d.text(query.right + 10, query.center[1], "the query of [MASK]", "heading", SMALL, "start")
    d.arrow((center, query.bottom + 2), (center, top - 32))
    d.text(
        center + 12,
        (query.bottom + top - 32) / 2,
        "dot product with each key, over √2",
        "note",
        SMALL,
        "start",
    )
    for x, name in ((center, "key"), (score, "score"), (weight, "weight"), (value + cell, "value")):
        d.text(x, top - 18, name, "heading", SMALL)
    bottom = top + step * len(MASKED) - 8
    box = d.box(softmax, top, softmax_width, bottom - top, "softmax", "attention", SMALL)
    for i, token in enumerate(MASKED):
        y = top + i * step
        middle = y + 14
        d.box(0, y, token_width, 28, token, "masked" if i == POSITION else "token", size, "mono")
        d.cells(key, middle - cell / 2, 1, 2, (cell, cell), "embedding")
        d.text(score, middle, format_number(scores[i], 1), "", SMALL)
        d.arrow((score + 17, middle), (box.x - 1, middle))
        d.arrow((box.right + 1, middle), (weight - 15, middle))
        d.text(weight, middle, format_number(weights[i]), "", SMALL)
        d.cells(bar, middle - 6, 1, 1, (float(bar_width * weights[i] / weights.max()), 12), "attention")
        vector = d.cells(value, middle - cell / 2, 1, 2, (cell, cell), "embedding")
        d.text(value - 9, middle, "×", size=SMALL)
        d.line((vector.right + 2, middle), (bus, middle))
    result = d.cells(bus - cell, bottom + 46, 1, 2, (cell, cell), "masked")
    d.line((bus, top + 14), (bus, bottom + 4))
    d.plus(bus, bottom + 13)
    d.drop(bus, bottom + 20, result.y)
    d.text(result.x - 8, result.center[1], "the result for [MASK]", "heading", SMALL, "end")
    rows = "; ".join(
        f"{token}: score {format_number(score, 1)}, weight {format_number(weight)}"
        for token, score, weight in zip(MASKED, scores, weights, strict=True)
    )
    return Words(
        "Self-attention at one position",
        "The dot product of the query of [MASK] with the key of each token, over √2, is a score. A softmax "
        f"turns the scores into weights that sum to 1. {rows}. Each weight multiplies the value of its "
        "token. The sum of the products is the result for [MASK].",
        "What one head computes for [MASK], with invented numbers. Most of the result comes from the value "
        f"of {best}: its key fits the query best.",
    )
