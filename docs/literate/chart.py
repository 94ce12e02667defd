"""
# Charts

A chart is inline SVG: it needs no script, follows the theme's colors, and describes itself to screen readers.
Lines differ in color, in dash pattern and in the shapes on them, and a table of the numbers unfolds below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from markupsafe import Markup

from docs.literate.templates import render

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 56
LINE = 22
"""The distance between the baselines of two lines of text."""
IDS = count(1)


Point = tuple[float, float]
Points = list[Point]


@dataclass
class Line:
    """One curve."""

    label: str
    points: list[tuple[float, float]]
    kind: str = ""
    """
    Lines of one kind look the same and share an entry in the legend, for example the seeds of one experiment.
    """


def ticks(low: float, high: float, target_count: int = 5) -> list[float]:
    """About `target_count` round numbers from `low` to `high`."""
    raw = (high - low) / target_count or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def path(points: list[tuple[float, float]]) -> str:
    """The `d` attribute of a polyline."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def powers(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis: powers of ten and, on a short axis, 2 and 5 times each."""
    factors = (1, 2, 5) if high / low < 100 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    # Parsed from text, because `10.0 ** -3` is not exactly 0.001.
    candidates = [float(f"{factor}e{exponent}") for exponent in exponents for factor in factors]
    return [value for value in candidates if low <= value * 1.001 and value <= high * 1.001]


def numbers(head: list[str], rows: list[list[str]]) -> Markup:
    """A table that unfolds under a chart. The first cell of each row is the row's header."""
    return render("numbers.html", head=head, rows=rows)


def text(x: float | str, y: float | str, words: str, **attributes: str) -> Markup:
    """Text inside a chart. A leading underscore marks an attribute named like a Python keyword: `_class`."""
    pairs = {name.strip("_").replace("_", "-"): value for name, value in attributes.items()}
    more = Markup("").join(Markup(' {}="{}"').format(*pair) for pair in pairs.items())
    return Markup('<text x="{}" y="{}"{}>{}</text>').format(x, y, more, words)


def figure(
    body: str,
    height: float,
    title: str,
    story: str,
    caption: str,
    key: Sequence[tuple[str, str]] = (),
    below: str = "",
    width: float = WIDTH,
    kind: str = "",
) -> Markup:
    """
    ## The frame of a chart

    `body` is the picture, as SVG, and `story` describes it in words. Each entry of the `key` (the legend) is
    a symbol, as HTML, and its name. `below` is the HTML of the table of numbers, and `kind` is an extra CSS
    class. Returns HTML on one line.
    """
    return render(
        "figure.html",
        id=f"c{next(IDS)}",
        body=Markup(body),
        width=f"{width:g}",
        height=f"{height:g}",
        title=title,
        story=story,
        caption=caption,
        key=[(Markup(mark), name) for mark, name in key],
        below=Markup(below),
        kind=kind,
    )


def value_at(line: Line, x: float) -> str:
    """The value of a line at `x`, as drawn: straight between two points. A dash where there is no line."""
    for (x1, y1), (x2, y2) in pairwise(line.points):
        if x1 - 1e-6 <= x <= x2 + 1e-6:
            return f"{y1 + (y2 - y1) * (x - x1) / (x2 - x1 or 1):.3f}"
    return "–"


def table(lines: list[Line], x_label: str, rows: int = 12) -> Markup:
    """The numbers under the chart, for at most `rows` evenly spaced values of `x`."""
    ends = sorted({x for line in lines for x, _ in line.points})
    body = []
    if len(ends) <= rows:
        for x in ends:
            there = [dict(line.points).get(x) for line in lines]
            body.append([f"{x:,.6g}", *("–" if y is None else f"{y:,.3f}" for y in there)])
    else:
        for i in range(rows):
            x = ends[0] + (ends[-1] - ends[0]) * i / (rows - 1)
            body.append([f"{x:,.0f}", *(value_at(line, x) for line in lines)])
    return numbers([x_label, *(line.label for line in lines)], body)


@dataclass
class Axes:
    """Maps data coordinates to the drawing, with linear or logarithmic axes."""

    left: float
    right: float
    low: float
    high: float
    log: bool = False

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        """The distances from the left and from the top edge."""
        left, right, low, high = self.left, self.right, self.low, self.high
        if self.log:
            x, y, left, right, low, high = map(math.log, (x, y, left, right, low, high))
        return (
            LEFT + (x - left) / (right - left or 1) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )


def axes(at: Axes, x_label: str) -> str:
    """The grid and the axis labels."""
    between = powers if at.log else ticks
    parts: list[str] = []
    for y in between(at.low, at.high):
        height = at(at.right, y)[1]
        parts.append(f'<path class="grid" d="M{LEFT},{height:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(text(LEFT - 8, f"{height + 5:.1f}", short(y), text_anchor="end"))
    for x in between(at.left, at.right):
        position, label = at(x, at.high)[0], short(x)
        # On a phone, the letters are larger. A label that would be cut off ends at the edge instead.
        is_cut = position > WIDTH - 6 * len(label)
        at_x, anchor = (f"{WIDTH}", "end") if is_cut else (f"{position:.1f}", "middle")
        parts.append(text(at_x, HEIGHT - BOTTOM + 20, label, text_anchor=anchor))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(text(middle, HEIGHT - 8, x_label, text_anchor="middle"))
    return "".join(parts)


def short(number: float) -> str:
    """A number as an axis label."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:g}"


# SVG paths, from the center of each shape. The first line of a chart is solid and has no shapes.
SHAPES = (
    "",
    "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "m-4,-4h8v8h-8z",
    "m0,-5l5,9h-10z",
    "m0,-6l5,6l-5,6l-5,-6z",
    "m-4,-4l8,8m0,-8l-8,8",
)


def shapes_on(points: Points, style: int, left: float, right: float) -> str:
    """Five shapes on a line, not at the same x as those of other styles. `points` are drawing coordinates."""
    shape = SHAPES[(style - 1) % len(SHAPES)]
    if not shape:
        return ""
    targets = [left + (i + 0.1 + 0.14 * style) / 5 * (right - left) for i in range(5)]
    near = {min(points, key=lambda point: abs(point[0] - x)) for x in targets}
    return f'<path class="mark n{style}" d="{"".join(f"M{x:.1f},{y:.1f}{shape}" for x, y in sorted(near))}"/>'


def fill_gaps(curve: Points) -> Points:
    """The points of a curve, and more on its long segments: at most 8 units apart."""
    return [
        (x1 + (x2 - x1) * i / steps, y1 + (y2 - y1) * i / steps)
        for (x1, y1), (x2, y2) in pairwise(curve)
        for steps in [1 + int(abs(x2 - x1) + abs(y2 - y1)) // 8]
        for i in range(steps + 1)
    ]


def split_in_two(words: str) -> list[str]:
    """Divides words into two lines of about the same length."""
    spaces = [i for i, letter in enumerate(words) if letter == " "]
    middle = min(spaces, key=lambda i: abs(2 * i - len(words)))
    return [words[:middle], words[middle + 1 :]]


def place_label(words: str, height: float, curves: list[Points]) -> tuple[float, float, list[str]]:
    """
    Finds room for the name of a level at `height` where it crosses no curve: above or below the level, as far
    to the right as possible. Returns the right end of the first baseline, and the lines of the name: two if
    there's no room for one. If even those don't fit, the name is above the level, on the right.
    """
    points = [point for curve in curves for point in fill_gaps(curve)]

    def is_free(right: float, y: float, width: float, tall: float) -> bool:
        if y < 0 or y + tall > HEIGHT - BOTTOM:
            return False
        return not any(
            right - width - 4 < at_x < right + 4 and y < at_y < y + tall + 6 for at_x, at_y in points
        )

    # On a phone, letters are largest: 11.5 units wide, and 24 high with the space around them.
    for lines in ([words], split_in_two(words)):
        width, tall = 11.5 * max(map(len, lines)), 24.0 + LINE * (len(lines) - 1)
        for y in (height - 6 - tall, height - 4):
            for right in range(WIDTH - RIGHT, int(LEFT + width), -20):
                if is_free(right, y, width, tall):
                    return float(right), y + 24, lines
    return float(WIDTH - RIGHT), height - 6, [words]


def line_chart(
    lines: list[Line],
    title: str,
    x_label: str,
    y_label: str,
    levels: list[tuple[str, float]] | None = None,
    caption: str = "",
    log: bool = False,
) -> Markup:
    """
    ## Curves

    `levels` are horizontal lines with a name. With `log` both axes are logarithmic, so that a power law
    becomes a straight line. Returns a `figure`, as HTML on one line.
    """
    levels = levels or []
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [y for _, y in levels]
    left, right = min(xs) if log else min(0, *xs), max(xs)
    low, high = min(ys), max(ys)
    pad = 0.06 * (high - low or 1)
    low, high = (low / 1.2, high * 1.2) if log else (low - pad, high + pad)
    at = Axes(left, right, low, high, log)
    parts = [axes(at, x_label)]
    heights = [at(right, y)[1] for _, y in levels]
    parts += [f'<path class="level" d="M{LEFT},{height:.1f}H{WIDTH - RIGHT}"/>' for height in heights]
    kinds = list(dict.fromkeys(line.kind or line.label for line in lines))
    curves = [[at(x, y) for x, y in line.points] for line in lines]
    for line, curve in zip(lines, curves, strict=True):
        style = kinds.index(line.kind or line.label) + 1
        parts.append(f'<path class="line n{style}" d="{path(curve)}"/>')
        parts.append(shapes_on(curve, style, at(left, high)[0], at(right, high)[0]))
    obstacles: list[Points] = [*curves, *([(0.0, height), (float(WIDTH), height)] for height in heights)]
    for (name, value), height in zip(levels, heights, strict=True):
        others = [one for one in obstacles if one[0][1] != height]
        x, y, words = place_label(f"{name} {value:.2f}", height, others)
        for line_of_text in words:
            parts.append(text(f"{x:g}", f"{y:.1f}", line_of_text, _class="level", text_anchor="end"))
            obstacles.append([(x - 11.5 * len(line_of_text), y - 8), (x, y - 8)])
            y += LINE
    # Describe each curve by its first and last value, for readers who can't see it.
    story = "; ".join(
        f"{line.label} goes from {line.points[0][1]:.2f} to {line.points[-1][1]:.2f}" for line in lines
    )
    story += "".join(f"; {name} is at {y:.2f}" for name, y in levels)
    key = [
        (
            f'<svg viewBox="0 0 36 14" aria-hidden="true"><path class="line n{style}" d="M1,7H35"/>'
            f"{shapes_on([(18.0, 7.0)], style, 0, 36)}</svg>",
            kind,
        )
        for style, kind in enumerate(kinds, 1)
    ]
    story = f"{y_label} over {x_label}: {story}."
    return figure("".join(parts), HEIGHT, title, story, caption or title, key, table(lines, x_label))


@dataclass
class Bar:
    """A bar with its name above it and its value written behind it."""

    label: str
    value: float
    words: str
    kind: int = 1
    """Bars of one kind share a color."""
    least: float | None = None
    most: float | None = None
    """The ends of the range over repetitions, if there is one."""


def bar_chart(bars: list[Bar], title: str, caption: str = "", below: str = "") -> Markup:
    """
    ## Bars

    The bars are horizontal, with their names above them, so that a name has the full width of a phone.
    Returns a `figure`, as HTML on one line.
    """
    row, room = 54, 0.62 * WIDTH
    longest = max(bar.most or bar.value for bar in bars) or 1.0
    parts: list[str] = []
    for i, bar in enumerate(bars):
        y, length = i * row, room * bar.value / longest
        end = room * (bar.most or bar.value) / longest
        parts.append(text(0, y + 20, bar.label))
        parts.append(f'<path class="bar n{bar.kind}" d="M0,{y + 31}h{length:.1f}v12h-{length:.1f}z"/>')
        if bar.least is not None:
            start = room * bar.least / longest
            parts.append(f'<path class="range" d="M{start:.1f},{y + 36}H{end:.1f}v2H{start:.1f}z"/>')
        # Lowered by half the height of a digit, so that its middle is at that of the bar.
        parts.append(text(f"{end + 10:.1f}", y + 37, bar.words, dy="0.34em"))
    story = "; ".join(f"{bar.label}: {bar.words}" for bar in bars) + "."
    return figure("".join(parts), row * len(bars) + 4, title, story, caption or title, below=below)
