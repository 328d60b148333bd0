"""A small line chart as SVG, for notebooks: without script, so it is drawn at once and may be redrawn often."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

from winnow.report.colours import colour

Curve: TypeAlias = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 460, 150
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 24
POINTS_UP_TO = 300
"""Of a longer curve, so many points evenly spaced are drawn, and its last one."""


def svg_line_chart(curves: Mapping[str, Curve], *, x_title: str, y_title: str) -> str:
    """One colour a curve, with the ends of both axes; text has the colour of the page's. Nothing without points."""
    known = {
        name: [(x, y) for x, y in curve if math.isfinite(x) and math.isfinite(y)] for name, curve in curves.items()
    }
    points = [point for curve in known.values() for point in curve]
    if not points:
        return ""
    (left, right), (low, high) = _span([x for x, _ in points], 1.0), _span([y for _, y in points])

    def at(point: tuple[float, float]) -> str:
        x = LEFT + (point[0] - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (point[1] - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    lines = "".join(
        f'<polyline fill="none" stroke="{colour(index)}" stroke-width="2" '
        f'points="{" ".join(map(at, _thinned(curve)))}">'
        f"<title>{escape(name)}</title></polyline>"
        for index, (name, curve) in enumerate(known.items())
        if curve
    )
    floor, frame = HEIGHT - BOTTOM, 'stroke="currentColor" stroke-opacity="0.3"'
    texts = (
        _text(LEFT - 6, TOP + 8, f"{high:.4g}", "end"),
        _text(LEFT - 6, floor, f"{low:.4g}", "end"),
        _text(LEFT, HEIGHT - 8, f"{left:.4g}", "start"),
        _text(WIDTH - RIGHT, HEIGHT - 8, f"{right:.4g}", "end"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, f"{y_title} by {x_title}", "middle"),
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'style="max-width: 100%; height: auto" aria-label="{escape(f"{y_title} by {x_title}")}">'
        f'<path d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}" fill="none" {frame}/>{lines}{"".join(texts)}</svg>'
        + (_legend(list(known)) if len(known) > 1 else "")
    )


def _span(values: Sequence[float], around_one: float | None = None) -> tuple[float, float]:
    """From the least to the largest; around one value alone so much, or else a little."""
    low, high = min(values), max(values)
    around = 0.0 if high > low else around_one or abs(low) / 10 or 1.0
    return low - around, high + around


def _thinned(curve: Curve) -> Curve:
    step = math.ceil(len(curve) / POINTS_UP_TO)
    return curve if step < 2 else [*curve[:-1:step], curve[-1]]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="11" fill="currentColor" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(names: Sequence[str]) -> str:
    named = (f'<span style="color: {colour(index)}">■</span> {escape(name)}' for index, name in enumerate(names))
    return f"<div>{' &nbsp; '.join(named)}</div>"
