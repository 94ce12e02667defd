"""
# Charts

A chart is SVG within the page: no script draws it, it takes the colours of the theme, and a screen
reader is told what it shows. Lines differ in dash as well as colour, and the numbers stand below.
"""

import html
import math
from dataclasses import dataclass
from itertools import count

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 56
IDS = count(1)


@dataclass
class Line:
    """One curve."""

    label: str
    points: list[tuple[float, float]]
    kind: str = ""
    """Lines of one kind look alike and share an entry of the key: the seeds of one experiment."""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    raw = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def path(points: list[tuple[float, float]]) -> str:
    """The `d` of a polyline."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def powers(low: float, high: float) -> list[float]:
    """Round numbers for an axis of logarithms: powers of ten, and where these are few, 2 and 5 between."""
    factors = (1, 2, 5) if high / low < 100 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    # Rounded, as 10.0 ** -3 is not 0.001.
    found = [float(f"{factor}e{exponent}") for exponent in exponents for factor in factors]
    return [value for value in found if low <= value * 1.001 and value <= high * 1.001]


def numbers(head: list[str], rows: list[list[str]]) -> str:
    """A table that unfolds under a chart. The first cell of a row names it."""
    top = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        f"{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    return (
        '<details class="numbers" data-search-exclude><summary>The numbers</summary>'
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )


def figure(
    body: str, height: float, title: str, story: str, caption: str, key: str = "", below: str = ""
) -> str:
    """
    ## The frame of a chart

    `body` is what is drawn, `story` says it in words, `key` are the entries of its key, and `below` is the
    table of the numbers. Returns HTML on one line.
    """
    number = next(IDS)
    entries = f'<ul class="key">{key}</ul>' if key else ""
    return (
        f'<figure class="chart">{entries}'
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="c{number}t c{number}d">'
        f'<title id="c{number}t">{html.escape(title)}</title>'
        f'<desc id="c{number}d">{html.escape(story)}</desc>{body}</svg>'
        f"<figcaption>{html.escape(caption)}</figcaption>{below}</figure>"
    )


def table(lines: list[Line], x_label: str, rows: int = 12) -> str:
    """The numbers under the chart; more than `rows` places along the axis are thinned."""
    ends = sorted({x for line in lines for x, _ in line.points})
    body = []
    if len(ends) <= rows:
        for x in ends:
            there = [dict(line.points).get(x) for line in lines]
            body.append([f"{x:,.6g}", *("–" if y is None else f"{y:,.3f}" for y in there)])
    else:
        for i in range(rows):
            x = ends[0] + (ends[-1] - ends[0]) * i / (rows - 1)
            before = [[y for at, y in line.points if at <= x + 1e-9] for line in lines]
            body.append([f"{x:,.0f}", *(f"{ys[-1]:.3f}" if ys else "–" for ys in before)])
    return numbers([x_label, *(line.label for line in lines)], body)


@dataclass
class Axes:
    """Where a point of the data is on the paper, with axes of numbers or of their logarithms."""

    left: float
    right: float
    low: float
    high: float
    log: bool = False

    def __call__(self, x: float, y: float) -> tuple[float, float]:
        """To the right and down, from the upper left corner."""
        left, right, low, high = self.left, self.right, self.low, self.high
        if self.log:
            x, y, left, right, low, high = map(math.log, (x, y, left, right, low, high))
        return (
            LEFT + (x - left) / (right - left or 1) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )


def axes(at: Axes, x_label: str) -> str:
    """The grid and what is written along it."""
    between = powers if at.log else ticks
    parts = []
    for y in between(at.low, at.high):
        height = at(at.right, y)[1]
        parts.append(f'<path class="grid" d="M{LEFT},{height:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 5:.1f}" text-anchor="end">{short(y)}</text>')
    for x in between(at.left, at.right):
        place = at(x, at.high)[0]
        parts.append(
            f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{short(x)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>')
    return "".join(parts)


def short(number: float) -> str:
    """A number beside an axis."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:g}"


def line_chart(
    lines: list[Line],
    title: str,
    x_label: str,
    y_label: str,
    levels: list[tuple[str, float]] | None = None,
    caption: str = "",
    log: bool = False,
) -> str:
    """
    ## Curves

    `levels` are horizontal lines with a name. With `log` both axes are logarithms, so that a power is a
    straight line. Returns a `figure`, as HTML on one line.
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
    for name, y in levels:
        height = at(right, y)[1]
        parts.append(f'<path class="level" d="M{LEFT},{height:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="level" x="{WIDTH - RIGHT}" y="{height - 6:.1f}" text-anchor="end">'
            f"{html.escape(name)} {y:.2f}</text>"
        )
    kinds = list(dict.fromkeys(line.kind or line.label for line in lines))
    for line in lines:
        style = kinds.index(line.kind or line.label) + 1
        parts.append(f'<path class="line n{style}" d="{path([at(x, y) for x, y in line.points])}"/>')
    # The end of each curve, in words, for those who do not see it.
    story = "; ".join(
        f"{line.label} goes from {line.points[0][1]:.2f} to {line.points[-1][1]:.2f}" for line in lines
    )
    story += "".join(f"; {name} is at {y:.2f}" for name, y in levels)
    key = "".join(
        f'<li><svg viewBox="0 0 32 8" aria-hidden="true"><path class="line n{i + 1}" d="M1,4H31"/></svg>'
        f"{html.escape(kind)}</li>"
        for i, kind in enumerate(kinds)
    )
    story = f"{y_label} over {x_label}: {story}."
    return figure("".join(parts), HEIGHT, title, story, caption or title, key, table(lines, x_label))


@dataclass
class Bar:
    """A length with its name above it and its value in words behind it."""

    label: str
    value: float
    words: str
    kind: int = 1
    """Bars of one kind have one colour."""
    least: float | None = None
    most: float | None = None
    """Ends of the spread, if it is known."""


def bar_chart(bars: list[Bar], title: str, caption: str = "", below: str = "") -> str:
    """
    ## Bars

    They lie, with their names above them, so that a name has the whole width of a phone. Returns a `figure`,
    as HTML on one line.
    """
    row, room = 46, 0.62 * WIDTH
    longest = max(bar.most or bar.value for bar in bars) or 1.0
    parts = []
    for i, bar in enumerate(bars):
        y, length = i * row, room * bar.value / longest
        end = room * (bar.most or bar.value) / longest
        parts.append(f'<text x="0" y="{y + 20}">{html.escape(bar.label)}</text>')
        parts.append(f'<path class="bar n{bar.kind}" d="M0,{y + 27}h{length:.1f}v12h-{length:.1f}z"/>')
        if bar.least is not None:
            parts.append(f'<path class="spread" d="M{room * bar.least / longest:.1f},{y + 33}H{end:.1f}"/>')
        parts.append(f'<text x="{end + 10:.1f}" y="{y + 40}">{html.escape(bar.words)}</text>')
    story = "; ".join(f"{bar.label}: {bar.words}" for bar in bars) + "."
    return figure("".join(parts), row * len(bars) + 4, title, story, caption or title, below=below)
