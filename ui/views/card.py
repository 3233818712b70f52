"""An answer's rows, its chart and its SQL as one card in the chat, with a tab each. HTML on one line, so that nothing in it is
read as Markdown; its tabs are radio buttons, which need no script.

`line_html` draws numbers over time as a small line, and tells what it leaves out; empty where bars or rows say as much.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import isfinite
from typing import Any

from agent.presentation.shown import bar_lengths, cell_text, in_column
from tools.linking.word_forms import name_words
from ui.session.conversation_view import TurnView
from ui.views.words import counted, html, inert

CARD_ROWS, CARD_COLUMNS, CARD_CHARACTERS = 10, 8, 40
UNCUT_ROWS = 12  # so few are all shown
CHART_ROWS = 20


def card_html(turn: TurnView, index: int) -> str:
    """The card of the answer at that place of the conversation; empty where there is nothing to show."""
    answer = turn.answer or {}
    seen = _seen(answer)
    parts = {
        "Table": _table(seen, turn.row_count, bool(answer.get("truncated"))),
        "Chart": _chart(turn, seen),
        "SQL": _sql(turn),
    }
    if turn.row_count == 1 and len(seen["headings"]) <= 2:
        parts["Table"] = ""  # the sentence says it all
    there = {name: content for name, content in parts.items() if content}
    if not there:
        return ""
    first = "Chart" if line_html(answer, turn.row_count) else "Table"  # SQL alone opens by a click
    tabs = "".join(_tab(name, index, name == first) for name in there)
    panes = "".join(f'<div class="pane {name.lower()}">{content}</div>' for name, content in there.items())
    return f'<div class="card">{tabs}{_actions(turn, index, bool(parts["Table"]))}{panes}</div>'


def rows_html(turn: TurnView) -> str:
    """The rows of a question whose answer is not yet written."""
    early = turn.early or {"columns": [], "rows": [], "count": 0}
    return plain_rows_html(early["columns"], early["rows"], early["count"])


def plain_rows_html(columns: Sequence[str], rows: Sequence[Sequence[Any]], count: int, truncated: bool = False) -> str:
    """The first rows as the database gives them; `count`: of the result."""
    seen = {"headings": columns, "rows": rows, "kinds": ["other"] * len(columns)}
    table = _table(seen, count, truncated)
    return f'<div class="card early"><div class="pane table">{table}</div></div>' if table else ""


def big_number(turn: TurnView) -> str:
    """The one value of an answer that is no more than that."""
    seen = _seen(turn.answer or {})
    if (
        turn.row_count != 1
        or len(seen["headings"]) != 1
        or not seen["rows"]
        or seen["kinds"][0] not in ("amount", "digits")
    ):
        return ""
    (cell,) = in_column([seen["rows"][0][0]], seen["kinds"][0])
    return f'<div class="big">{inert(cell)}</div>'


def _seen(answer: dict[str, Any]) -> dict[str, Any]:
    """Headings, rows and kinds, as people see them."""
    seen = answer.get("shown") or {"headings": answer.get("columns", []), "rows": answer.get("rows", []), "kinds": []}
    return {**seen, "kinds": seen["kinds"] or ["other"] * len(seen["headings"])}


def _tab(name: str, index: int, chosen: bool) -> str:
    own = f"card-{index}-{name.lower()}"
    checked = " checked" if chosen else ""
    radio = f'<input type="radio" class="of-{name.lower()}" name="card-{index}" id="{own}" value="{name}"{checked}>'
    return f'{radio}<label for="{own}">{name}</label>'


def _actions(turn: TurnView, index: int, has_rows: bool) -> str:
    export = '<button type="button" class="export-card" title="export all rows">Export</button>' if has_rows else ""
    copy = '<button type="button" class="copy-card" title="copy what stands here">Copy</button>'
    link = f'<button type="button" class="link-card" id="link-{index}" title="copy the address of this answer">Link</button>'
    kept = "★ Kept" if turn.liked else "☆ Keep"
    hint = "keep no longer" if turn.liked else "keep this answer: right, and worth finding again"
    star = f'<button type="button" class="star" id="star-{index}" title="{hint}">{kept}</button>'
    again = f'<button type="button" class="again" id="again-{index}" title="answer it in another way">Again</button>'
    return f'<span class="actions">{copy}{export}{link}{again}{star}</span>'


def _table(seen: dict[str, Any], count: int, truncated: bool) -> str:
    """The first rows, with a bar next to each where that says more than its number."""
    if not seen["headings"] or not seen["rows"]:
        return ""
    lengths = bar_lengths(seen["rows"], seen["kinds"])
    kinds = seen["kinds"][:CARD_COLUMNS]
    rows = seen["rows"][: UNCUT_ROWS if count <= UNCUT_ROWS else CARD_ROWS]
    columns = [in_column([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    sides = [' class="number"' if kind in ("amount", "digits") else "" for kind in kinds]
    head = [f'<th scope="col"{side}>{_cell(name)}</th>' for name, side in zip(seen["headings"], sides, strict=False)]
    body = [
        [f"<td{side}>{_cell(cell)}</td>" for cell, side in zip(cells, sides, strict=True)]
        for cells in zip(*columns, strict=True)
    ]
    if lengths and "amount" in kinds:  # next to the number that it stands for
        amount = kinds.index("amount")
        head[amount] += "<th></th>"
        for cells, length in zip(body, lengths, strict=False):
            cells[amount] += f"<td>{_bar(length)}</td>"
    told = "".join(f"<tr>{''.join(cells)}</tr>" for cells in body)
    table = f"<table><thead><tr>{''.join(head)}</tr></thead><tbody>{told}</tbody></table>"
    return f"{table}{_more(count - len(rows), len(seen['headings']), truncated)}"


def _chart(turn: TurnView, seen: dict[str, Any]) -> str:
    """A line over time, or bars; empty where neither fits."""
    if line := line_html(turn.answer or {}, turn.row_count):
        return line
    lengths = bar_lengths(seen["rows"], seen["kinds"])
    if not lengths:
        return ""
    amount = seen["kinds"].index("amount")
    others = [place for place in range(len(seen["kinds"])) if place != amount]
    who = next((place for place in others if seen["kinds"][place] == "text"), others[0])
    names, numbers = (in_column([row[place] for row in seen["rows"]], seen["kinds"][place]) for place in (who, amount))
    longest_first = sorted(zip(lengths, names, numbers, strict=True), key=lambda bar: -bar[0])[:CHART_ROWS]
    bars = "".join(
        f'<tr><th scope="row">{_cell(name)}</th><td>{_bar(length)}</td><td class="number">{_cell(number)}</td></tr>'
        for length, name, number in longest_first
    )
    told = f"{inert(seen['headings'][amount])} by {inert(seen['headings'][who])}"
    drawn = len(longest_first)
    left = f"{counted(turn.row_count - drawn, 'more row')} not drawn" if turn.row_count > drawn else ""
    note = f'<p class="more">{left}</p>' if left else ""
    return f'<table class="bars"><caption>{told}</caption><tbody>{bars}</tbody></table>{note}'


def _sql(turn: TurnView) -> str:
    """The statement that gives these rows; the model's own folded where it is another."""
    if not turn.sql:
        return ""
    own = f"<details><summary>as the model wrote it</summary>{_code(turn.laid_out)}</details>"
    return f"{_code(turn.statement)}{own if turn.laid_out != turn.statement else ''}"


def _code(sql: str) -> str:
    return f"<pre><code>{inert(sql)}</code></pre>"


def _more(left: int, columns: int, truncated: bool) -> str:
    """What the card leaves out of the result, and the result of the database."""
    more = [counted(left, "more row")] if left > 0 else []
    if columns > CARD_COLUMNS:
        more.append(counted(columns - CARD_COLUMNS, "more column"))
    told = [f"{' and '.join(more)} in the result"] if more else []
    if truncated:
        told.append("cut off by the row limit")
    return f'<p class="more">{"; ".join(told)}</p>' if told else ""


def _bar(length: float) -> str:
    return f'<i class="bar" style="width:{100 * length:.0f}%"></i>'


def _cell(cell: Any) -> str:
    text = " ".join(str(cell).split())
    return inert(text if len(text) <= CARD_CHARACTERS else f"{text[: CARD_CHARACTERS - 1]}…")


def strip_html(ours: int, plain: int) -> str:
    """The passes that an answer took, drawn into those that plain decoding takes."""
    if not ours or not plain:
        return ""
    share = 100 * min(1.0, ours / plain)
    return f'<span class="strip"><i style="width:{share:.0f}%"></i></span>'


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
        verb = "is" if series.undated == 1 else "are"
        parts.append(f"{counted(series.undated, 'row')} without a {html(series.when)} {verb} left out.")
    if held < row_count:
        parts.append(f"The first {held:,} of {row_count:,} rows are drawn.")
    if truncated:
        parts.append("The result was cut off by the row limit: the line is partial.")
    return " ".join(filter(None, parts))


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
