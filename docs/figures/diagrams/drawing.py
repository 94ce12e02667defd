"""
# Boxes, arrows and words

A diagram is SVG within the page: no script draws it, and it takes the colors of the theme. A unit of the
drawing is a pixel of the page. So each diagram is drawn twice, for a column of text and for a phone.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

COLUMN, PHONE = 680, 340
SIZE, SMALL = 14, 12.5
Point = tuple[float, float]


class Words(NamedTuple):
    """What a diagram says in words."""

    title: str
    description: str
    """All that the diagram shows, for readers who don't see it."""
    caption: str


class Box(NamedTuple):
    """A rectangle, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def center(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2


def text_width(words: str, size: float, is_mono: bool = False) -> float:
    """The approximate width of a line of text. Fonts differ; few are wider."""
    if is_mono:
        return 0.61 * size * len(words)
    widths = {**dict.fromkeys(" .,:;()[]ijlftr", 0.36), **dict.fromkeys("mwMW", 0.95)}
    ems = (widths.get(c, 0.72 if c.isupper() else 0.58) for c in words)
    return size * sum(ems)


def columns(texts: Sequence[str], left: float, right: float, gap: float, size: float) -> list[Point]:
    """The x and width of a column for each text, from `left` to `right`. Longer texts get wider columns."""
    widths = [text_width(text, size, is_mono=True) for text in texts]
    padding = (right - left - sum(widths) - gap * (len(texts) - 1)) / len(texts)
    starts = [left]
    for width in widths:
        starts.append(starts[-1] + width + padding + gap)
    return [(start, end - start - gap) for start, end in pairwise(starts)]


class Drawing:
    """
    ## A drawing

    A `kind` is a CSS class, whose color the style sheet sets: `token`, `masked`, `embedding`, `attention`,
    `forward`, `norm`, `head`. `height` follows from what is drawn.
    """

    def __init__(self, width: float):
        self.width, self.height = width, 0.0
        self.parts: list[Markup] = []

    @property
    def is_narrow(self) -> bool:
        """Whether this is the drawing for a phone."""
        return self.width < COLUMN

    def add(self, part: str, bottom: float, *values: object) -> None:
        """Adds an element of SVG, with `values` in its braces, that reaches down to `bottom`."""
        rounded = (round(value, 1) if isinstance(value, float) else value for value in values)
        self.parts.append(Markup(part).format(*rounded))
        self.height = max(self.height, math.ceil(bottom))

    def text(
        self, x: float, y: float, words: str, kind: str = "", size: float = SIZE, anchor: str = "middle"
    ) -> None:
        """Words around the height `y`, with a line for each `\\n`."""
        lines = words.split("\n")
        for i, line in enumerate(lines):
            middle = y + (i - (len(lines) - 1) / 2) * 1.3 * size
            self.add(
                '<text x="{:g}" y="{:g}" font-size="{:g}" text-anchor="{}" class="{}">{}</text>',
                middle + 0.6 * size,
                *(x, middle + 0.35 * size, size, anchor, kind, line),
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        kind: str = "",
        size: float = SIZE,
        text_kind: str = "",
    ) -> Box:
        """A box with words in its middle."""
        self.add(
            '<rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" rx="4" class="box {}"/>',
            *(y + height, x, y, width, height, kind),
        )
        if words:
            self.text(x + width / 2, y + height / 2, words, text_kind, size)
        return Box(x, y, width, height)

    def cells(self, x: float, y: float, rows: int, count: int, cell: Point, kind: str) -> Box:
        """A vector or a matrix: rows of `count` cells."""
        grid = Box(x, y, count * cell[0], rows * cell[1])
        self.add(
            '<rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" class="box {}"/>', grid.bottom, *grid, kind
        )
        d = "".join(f"M{x + i * cell[0]:g},{y:g}v{grid.height:g}" for i in range(1, count))
        d += "".join(f"M{x:g},{y + i * cell[1]:g}h{grid.width:g}" for i in range(1, rows))
        if d:
            self.add('<path class="grid {}" d="{}"/>', grid.bottom, kind, d)
        return grid

    def line(self, *points: Point, kind: str = "arrow") -> None:
        """A line through points."""
        d = "M" + "L".join(f"{x:g},{y:g}" for x, y in points)
        self.add('<path class="{}" d="{}"/>', max(y for _, y in points), kind, d)

    def arrow(self, *points: Point, kind: str = "arrow") -> None:
        """A line through points, with a tip at the last."""
        (x0, y0), (x1, y1) = points[-2:]
        distance = math.hypot(x1 - x0, y1 - y0)
        # The direction of the last segment; (-v, u) is perpendicular to it.
        u, v = (x1 - x0) / distance, (y1 - y0) / distance
        length, half = (11, 6) if kind == "path" else (7, 4)
        x, y = x1 - length * u, y1 - length * v
        self.line(*points[:-1], (x, y), kind=kind)
        corners = f"{x1:g},{y1:g}L{x - half * v:g},{y + half * u:g}L{x + half * v:g},{y - half * u:g}"
        self.add('<path class="tip {}-tip" d="M{}z"/>', y1, kind, corners)

    def down(self, start: Box, end: Box, words: str = "") -> None:
        """An arrow from a box straight down to the middle of another box's top, with words on its right."""
        self.drop(end.center[0], start.bottom, end.y, words)

    def drop(self, x: float, start: float, end: float, words: str = "") -> None:
        """An arrow straight down from one edge to another, with words on its right."""
        self.arrow((x, start + 2), (x, end - 2))
        if words:
            self.text(x + 12, (start + end) / 2, words, "note", SMALL, "start")

    def plus(self, x: float, y: float) -> None:
        """A sum: a plus in a circle."""
        self.add('<circle class="sum" cx="{:g}" cy="{:g}" r="9"/>', y + 9, x, y)
        self.add('<path class="sum" d="M{:g},{:g}h10M{:g},{:g}v10"/>', y + 5, x - 5, y, x, y - 5)
