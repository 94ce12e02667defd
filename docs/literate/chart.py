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


def table(lines: list[Line], x_label: str, rows: int = 12) -> str:
    """The numbers under the chart, thinned to `rows` places along the axis."""
    ends = sorted({x for line in lines for x, _ in line.points})
    wanted = [ends[0] + (ends[-1] - ends[0]) * i / (rows - 1) for i in range(rows)]
    head = "".join(f'<th scope="col">{html.escape(line.label)}</th>' for line in lines)
    body = ""
    for x in wanted:
        cells = ""
        for line in lines:
            before = [y for at, y in line.points if at <= x + 1e-9]
            cells += f"<td>{before[-1]:.3f}</td>" if before else "<td>–</td>"
        body += f'<tr><th scope="row">{x:,.0f}</th>{cells}</tr>'
    return (
        '<details class="numbers"><summary>The numbers</summary><div class="wide"><table><thead><tr>'
        f'<th scope="col">{html.escape(x_label)}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def line_chart(
    lines: list[Line],
    title: str,
    x_label: str,
    y_label: str,
    levels: list[tuple[str, float]] | None = None,
    caption: str = "",
) -> str:
    """
    ## Curves

    `levels` are horizontal lines with a name. Returns a `figure`, as HTML on one line.
    """
    levels = levels or []
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [y for _, y in levels]
    left, right = min(0, *xs), max(xs)
    low, high = min(ys), max(ys)
    pad = 0.06 * (high - low or 1)
    low, high = low - pad, high + pad

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - left) / (right - left or 1) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM),
        )

    base = HEIGHT - BOTTOM
    parts = []
    for y in ticks(low, high):
        height = at(0, y)[1]
        parts.append(f'<path class="grid" d="M{LEFT},{height:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 5:.1f}" text-anchor="end">{y:g}</text>')
    for x in ticks(left, right):
        parts.append(f'<text x="{at(x, 0)[0]:.1f}" y="{base + 20}" text-anchor="middle">{x:,.0f}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>')
    for name, y in levels:
        height = at(0, y)[1]
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
    number = next(IDS)
    key = "".join(
        f'<li><svg viewBox="0 0 32 8" aria-hidden="true"><path class="line n{i + 1}" d="M1,4H31"/></svg>'
        f"{html.escape(kind)}</li>"
        for i, kind in enumerate(kinds)
    )
    words = f"<figcaption>{html.escape(caption or title)}</figcaption>"
    return (
        f'<figure class="chart"><ul class="key">{key}</ul>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="c{number}t c{number}d">'
        f'<title id="c{number}t">{html.escape(title)}</title>'
        f'<desc id="c{number}d">{html.escape(f"{y_label} over {x_label}: {story}.")}</desc>'
        f"{''.join(parts)}</svg>{words}{table(lines, x_label)}</figure>"
    )
