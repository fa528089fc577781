"""Charts as SVG for the report, without packages or scripts; the page's style sets the colours."""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 26, 30
"""Margins for titles and numbers."""
MOST_POINTS = 400
"""The most points of a line, because more points than pixels cannot be seen."""


def line_chart(title: str, points: Sequence[tuple[float, float]], x_label: str) -> str:
    """A line chart of points in ascending order of their first numbers."""
    points = _thinned(points)
    x_ticks, y_ticks = (ticks(min(values), max(values)) for values in zip(*points, strict=True))
    left, right, low, high = x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1]
    if points[-1][0] > left:  # a line ends at the edge
        right = points[-1][0]
        x_ticks = [tick for tick in x_ticks if tick <= right]

    def x(value: float) -> float:
        return LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>']
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y(tick) + 3:.1f}" text-anchor="end">{shown(tick)}</text>')
    for tick in x_ticks[:: max(1, (len(x_ticks) - 1) // 3)]:
        anchor = "end" if tick == x_ticks[-1] else "middle"
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - 17}" text-anchor="{anchor}">{shown(tick)}</text>'
        )
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>')
    way = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    parts.append(f'<polyline class="curve" points="{way}"/>')
    return _picture(title, WIDTH, HEIGHT, parts)


def stacked_bar(title: str, parts: Sequence[tuple[str, float]]) -> str:
    """One bar, divided in proportion to the numbers; the parts have classes `part0`, `part1` and so on."""
    whole = sum(value for _, value in parts)
    width, height = 700, 44
    drawn, end = [], 0.0
    for number, (name, value) in enumerate(parts):
        size = width * value / whole
        label = f"{escape(name)} {value / whole:.0%}"
        place = f'x="{end:.1f}" y="4" width="{size:.1f}" height="36"'
        drawn.append(f'<rect class="part{number}" {place}><title>{label}</title></rect>')
        if size > 90:
            drawn.append(f'<text class="onbar" x="{end + size / 2:.1f}" y="27" text-anchor="middle">{label}</text>')
        end += size
    return _picture(title, width, height, drawn)


def _picture(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}">'
    return "\n".join((opening, f"<title>{escape(title)}</title>", *parts, "</svg>"))


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST_POINTS` points, each the mean of neighbours."""
    size = math.ceil(len(points) / MOST_POINTS)
    blocks = (points[start : start + size] for start in range(0, len(points), size))
    return [(sum(a for a, _ in block) / len(block), sum(b for _, b in block) / len(block)) for block in blocks]


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers from at most `low` to at least `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        room = abs(high) or 1.0
        low, high = low - 0.5 * room, high + 0.5 * room
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(size * unit for size in (1, 2, 2.5, 5, 10) if size * unit >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def shown(value: float) -> str:
    """A number in few characters."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            return f"{value / (1e3 if name == 'k' else unit):.4g}{name}"
    return f"{value:.4g}"
