"""An answer's numbers over time as a small line, and what it leaves out; empty where bars or rows say as much."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import isfinite
from typing import Any

from agent.presentation.shown import cell_text
from tools.linking.word_forms import name_words
from ui.views.words import counted, html

LEAST_POINTS = 5
"""Fewer are read faster as rows."""
MOST_DOTS = 40  # points that are marked on the line
_WIDTH, _HEIGHT = 420, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 6, 414, 22, 110  # the plot's edges
_TIMES = frozenset(["year", "month", "week", "day", "date", "quarter", "decade"])
_MONTH = re.compile(r"\d{4}-\d\d")
_FROM_ZERO = 0.5  # a line begins at 0 where its lowest value is below this share of its highest, and none is negative


@dataclass(frozen=True, slots=True)
class Point:
    """`at`: where it stands in time, in years or seconds; `value`: None where the number is missing."""

    at: float
    value: float | None
    when: str
    told: str


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of time. `undated`: rows whose time is missing."""

    when: str
    what: str
    points: tuple[Point, ...]
    undated: int


def line_html(answer: dict[str, Any], row_count: int) -> str:
    """The line of an answer with one amount over time, and what it leaves out. `row_count`: of the result."""
    series = series_of(answer.get("shown") or {})
    if series is None:
        return ""
    note = _note(series, len(answer["shown"]["rows"]), row_count, bool(answer.get("truncated")))
    told = f"<figcaption>{note}</figcaption>" if note else ""
    return f'<figure class="line-chart">{_svg(series)}{told}</figure>'


def series_of(shown: dict[str, Any]) -> Series | None:
    """The series of shown rows: one column of distinct times and one of amounts, not sorted by the amounts."""
    kinds = shown.get("kinds") or []
    amounts = [place for place, kind in enumerate(kinds) if kind == "amount"]
    if len(kinds) != 2 or len(amounts) != 1:
        return None
    y, x = amounts[0], 1 - amounts[0]
    rows, headings = shown["rows"], shown["headings"]
    places = [_at(row[x], headings[x]) for row in rows]
    dated = [(at, row) for at, row in zip(places, rows, strict=True) if at is not None]
    undated = sum(row[x] is None for row in rows)
    distinct = len({at for at, _ in dated}) == len(dated) == len(rows) - undated
    if (
        not distinct
        or len(dated) < LEAST_POINTS
        or _ranked([_number(row[y]) for _, row in dated], [at for at, _ in dated])
    ):
        return None
    points = tuple(
        Point(at, _number(row[y]), cell_text(row[x], kinds[x]), cell_text(row[y], "amount"))
        for at, row in sorted(dated, key=lambda pair: pair[0])
    )
    known = [point for point in points if point.value is not None]
    return Series(headings[x], headings[y], points, undated) if len(known) >= LEAST_POINTS else None


def _ranked(values: Sequence[float | None], places: Sequence[float]) -> bool:
    """Whether the rows are sorted by their amounts, and not by time: then the order is what was asked for."""
    known = [value for value in values if value is not None]
    return _sorted(known) and not _sorted(places)


def _sorted(values: Sequence[float]) -> bool:
    pairs = list(pairwise(values))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _at(cell: Any, heading: str) -> float | None:
    """The time of a cell: of a whole number by its heading, of a text by its form."""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return float(cell) if not _TIMES.isdisjoint(name_words(heading)) else None
    if not isinstance(cell, str):
        return None
    try:
        return datetime.fromisoformat(f"{cell}-01" if _MONTH.fullmatch(cell) else cell).replace(tzinfo=None).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _number(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if isfinite(value) else None


def _note(series: Series, held: int, row_count: int, truncated: bool) -> str:
    gaps = sum(point.value is None for point in series.points)
    parts = [f"{counted(gaps, 'gap')}: no number." if gaps else ""]
    if series.undated:
        parts.append(f"{counted(series.undated, 'row')} without a {html(series.when)} {_is(series.undated)} left out.")
    if held < row_count:
        parts.append(f"The first {held:,} of {row_count:,} rows are drawn.")
    if truncated:
        parts.append("The result was cut off by the row limit: the line is partial.")
    return " ".join(filter(None, parts))


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _svg(series: Series) -> str:
    known = [point for point in series.points if point.value is not None]
    low, high = (pick(known, key=lambda point: point.value or 0.0) for pick in (min, max))
    bottom = 0.0 if 0 <= (low.value or 0) < _FROM_ZERO * (high.value or 0) else low.value or 0.0
    first, last = series.points[0], series.points[-1]
    label = html(
        f"{series.what} by {series.when}: lowest {low.told} ({low.when}), highest {high.told} ({high.when}), "
        f"last {known[-1].told} ({known[-1].when})"
    )
    drawn = _drawn(series.points, bottom, high.value or 0.0)
    words = (
        f'<text x="{_LEFT}" y="13">{html(high.told)} <tspan class="soft">{html(series.what)}, highest in {html(high.when)}'
        f'</tspan></text><text class="soft" x="{_LEFT}" y="{_HEIGHT - 6}">{html(first.when)}</text>'
        f'<text class="soft" x="{_RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{html(last.when)}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{words}{drawn}</svg>'


def _drawn(points: Sequence[Point], bottom: float, top: float) -> str:
    """Axis, line and points; the line breaks where a number is missing."""
    left, width, height = points[0].at, points[-1].at - points[0].at or 1.0, top - bottom or 1.0
    runs: list[list[str]] = [[]]
    dots: list[str] = []
    for point in points:
        if point.value is None:
            runs.append([])
            continue
        x = _LEFT + 4 + (_RIGHT - _LEFT - 8) * (point.at - left) / width
        y = _BOTTOM - 4 - (_BOTTOM - _TOP - 8) * (point.value - bottom) / height
        runs[-1].append(f"{x:.1f},{y:.1f}")
        dots.append(_dot(x, y, point))
    lines = "".join(f'<polyline points="{" ".join(run)}"/>' for run in runs if len(run) > 1)
    marked = "".join(dots) if len(dots) <= MOST_DOTS else ""
    return f'<path class="axis" d="M{_LEFT} {_BOTTOM}H{_RIGHT}"/>{lines}{marked}'


def _dot(x: float, y: float, point: Point) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{html(point.when)}: {html(point.told)}</title></circle>'
