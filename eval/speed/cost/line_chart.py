"""Draws line charts as SVG: one curve each, labelled axes that start at zero, and points with their values."""

from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 420, 260, 56, 40, 34  # pixels
_INK, _GRID = "#1f4e79", "#d0d0d0"
_TICKS = 4


def charts(panels: Sequence[tuple[str, str, str, Sequence[tuple[float, float]]]]) -> str:
    """An SVG of panels (title, name of x, name of y, points sorted by x), two side by side."""
    rows = (len(panels) + 1) // 2
    drawn = "".join(
        f'<g transform="translate({(i % 2) * _WIDTH},{(i // 2) * _HEIGHT})">{_panel(*panel)}</g>'
        for i, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * _WIDTH}" height="{rows * _HEIGHT}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{drawn}</svg>\n'
    )


def _panel(title: str, x_name: str, y_name: str, points: Sequence[tuple[float, float]]) -> str:
    right, floor = _WIDTH - 20, _HEIGHT - _BOTTOM
    x_most, y_most = (max(values) or 1.0 for values in zip(*points, strict=True))
    at = [(_LEFT + x / x_most * (right - _LEFT), floor - y / y_most * (floor - _TOP)) for x, y in points]
    grid = ""
    for tick in range(_TICKS + 1):
        y = floor - tick / _TICKS * (floor - _TOP)
        grid += f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{_GRID}"/>'
        grid += f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{y_most * tick / _TICKS:.4g}</text>'
        x = _LEFT + tick / _TICKS * (right - _LEFT)
        grid += f'<text x="{x:.1f}" y="{floor + 15}" text-anchor="middle">{x_most * tick / _TICKS:.4g}</text>'
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_INK}"><title>{point[0]:g}: {point[1]:.4g}</title></circle>'
        for (x, y), point in zip(at, points, strict=True)
    )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    return (
        f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(title)}</text>{grid}'
        f'<polyline points="{line}" fill="none" stroke="{_INK}" stroke-width="2"/>{dots}'
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>'
        f'<text transform="translate(12,{(floor + _TOP) / 2}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>'
    )
