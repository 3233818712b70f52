"""Which chart fits a result, and how it is drawn.

Which chart fits a result, by the shape of its columns, the data for it, and what it leaves out.

A chart as Vega-Lite draws it, in colours that hold on light and dark.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd

from ui.views.words import counted

Kind = Literal["bar", "line", "scatter", "none"]
Cells = Sequence[Sequence[Any]]
KINDS: tuple[Kind, ...] = ("bar", "line", "scatter", "none")
MOST_BARS, MOST_POINTS, MOST_SERIES = 40, 2000, 8
NO_VALUE = "(no value)"  # the bar of NULL
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?([ T]\d\d:\d\d.*)?")
_TIME_NAME = re.compile(r"\b(year|month|week|day|date|quarter)s?\b")
_KEY_NAME = re.compile(r"(^|[_ ])id$")


@dataclass(frozen=True, slots=True)
class Chart:
    """`frame` has the columns `x` and `y`, by these names; they stand for the result's columns at `indices`. `series`: the
    column of the frame whose values have a colour each, where there is one.

    in_order: bars stand in the rows' order, as those of years do; others are sorted by length. note: what is not shown.
    """

    kind: Kind
    x: str
    y: str
    frame: pd.DataFrame
    indices: tuple[int, int] | None = None
    in_order: bool = False
    note: str = ""
    series: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """Column indices by what they hold."""

    numbers: list[int]
    times: list[int]
    labels: list[int]


def suggest(columns: Sequence[str], rows: Cells) -> Chart:
    """A line over time, bars over labels, points over two numbers; none for a single row or without numbers."""
    shape = shape_of(columns, rows)
    measures = [i for i in shape.numbers if i not in shape.times and not _KEY_NAME.search(columns[i].casefold())]
    across = shape.times or shape.labels or [i for i in shape.numbers if i not in measures]
    if len(rows) < 2 or not (measures or shape.numbers):
        return draw("none", columns, rows, 0, 0)
    if not across and len(measures) > 1:
        return draw("scatter", columns, rows, measures[0], measures[1])
    y = next((i for i in reversed(measures or shape.numbers) if i not in across[:1]), None)
    if not across or y is None:
        return draw("none", columns, rows, 0, 0)
    return draw("line" if shape.times and len(rows) > 2 else "bar", columns, rows, across[0], y)


def fitting(columns: Sequence[str], rows: Cells) -> list[Kind]:
    """The kinds that can show the result at all."""
    shape = shape_of(columns, rows)
    if len(rows) < 2 or len(columns) < 2 or not shape.numbers:
        return ["none"]
    kinds: list[Kind] = ["bar"]
    if shape.times or len(shape.numbers) > 1:
        kinds.append("line")
    if len(shape.numbers) > 1:
        kinds.append("scatter")
    return [*kinds, "none"]


def draw(kind: Kind, columns: Sequence[str], rows: Cells, x: int, y: int, every: bool = False) -> Chart:
    """A chart of two columns by their indices. Bars beyond the first 40 are left out unless `every`, points beyond 2,000."""
    if kind == "none" or not columns:
        return Chart("none", "", "", pd.DataFrame())
    most = MOST_BARS if kind == "bar" and not every else MOST_POINTS
    third = _series(rows, shape_of(columns, rows).labels, x, y)
    numbered = [(row[x], number, _label(row, third)) for row in rows if (number := _number(row[y])) is not None]
    drawn = [each for each in numbered if kind == "bar" or _on_axis(kind, each[0])]
    names = _names(columns[x], columns[y])
    series = "" if third is None else _axis(columns[third], "series")
    series = f"{series} again" if series in names else series
    frame = pd.DataFrame(
        [each[: 3 if series else 2] for each in drawn[:most]], columns=[*names, *filter(None, [series])]
    )
    frame[names[0]] = _across(kind, frame[names[0]])
    note = _note("bar" if kind == "bar" else "point", len(rows), len(drawn), most)
    return Chart(kind, *names, frame, (x, y), x in shape_of(columns, rows).times, note, series)


def _series(rows: Cells, labels: Sequence[int], x: int, y: int) -> int | None:
    """The column of words that tells rows with the same place across apart, where it has few different ones."""
    found = [place for place in labels if place not in (x, y) and 1 < len({row[place] for row in rows}) <= MOST_SERIES]
    across = [row[x] for row in rows]
    return found[0] if len(found) == 1 and len(set(map(str, across))) < len(across) else None


def _label(row: Sequence[Any], place: int | None) -> str:
    return "" if place is None else NO_VALUE if row[place] is None else str(row[place])


def _note(what: str, rows: int, drawn: int, most: int) -> str:
    """What is left out, in a sentence or two; empty where nothing is."""
    parts = [f"{most:,} of {drawn:,} {what}s are shown."] if drawn > most else []
    if rows > drawn:
        gone = rows - drawn
        parts.append(f"{counted(gone, 'row')} without a number {'is' if gone == 1 else 'are'} left out.")
    return " ".join(parts)


def _names(x: str, y: str) -> tuple[str, str]:
    names = (_axis(x, "x"), _axis(y, "y"))
    return names if names[0] != names[1] else (names[0], f"{names[1]} again")


def _axis(column: str, otherwise: str) -> str:
    """A column's name without what a plot takes for a path into its data, such as dots and brackets."""
    return " ".join(re.sub(r"\W+", " ", column).split()) or otherwise


def _on_axis(kind: Kind, cell: Any) -> bool:
    return cell is not None and (kind != "scatter" or _number(cell) is not None or _is_date(cell))


def _across(kind: Kind, cells: "pd.Series[Any]") -> "pd.Series[Any]":
    """The values across, as the kind takes them: labels, numbers, or points in time."""
    if kind == "bar":
        return cells.map(lambda cell: NO_VALUE if cell is None or cell != cell else str(cell)).astype(object)
    if len(cells) and cells.map(_is_date).all():
        return pd.to_datetime(cells, format="mixed")
    return cells.map(_number) if kind == "scatter" else cells


def shape_of(columns: Sequence[str], rows: Cells) -> Shape:
    """What the columns hold, by name and by the first rows."""
    numbers, times, labels = list[int](), list[int](), list[int]()
    for i, name in enumerate(columns):
        cells = [row[i] for row in rows[:MOST_POINTS] if row[i] is not None]
        is_number = bool(cells) and all(isinstance(c, int | float) and not isinstance(c, bool) for c in cells)
        words = name.casefold().replace("_", " ")
        is_year = is_number and _TIME_NAME.search(words) is not None and all(isinstance(cell, int) for cell in cells)
        if is_number:
            numbers.append(i)
        if is_year or (cells and all(map(_is_date, cells))):
            times.append(i)
        elif not is_number:
            labels.append(i)
    return Shape(numbers, times, labels)


def _is_date(cell: Any) -> bool:
    return isinstance(cell, str) and _DATE.fullmatch(cell) is not None


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


ACROSS = 6  # labels that stand side by side; more are turned
_COLOUR, _INK = "#0d9488", "#64748b"
_HEIGHT, _BAR_HEIGHT = 300, 20
_AXIS: dict[str, Any] = {
    "labelColor": _INK,
    "titleColor": _INK,
    "gridColor": _INK,
    "gridOpacity": 0.18,
    "domainColor": _INK,
    "tickColor": _INK,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "labelOverlap": True,
}
_EXPORTS = {"export": {"svg": True, "png": True}, "source": False, "compiled": False, "editor": False}
_EMBEDDED = {"actions": _EXPORTS, "renderer": "svg"}  # its texts are coloured by the page, for light and for dark


def picture(chart: Chart) -> alt.Chart | None:
    """The picture, with a menu to save it as SVG or PNG; None where there is nothing to draw."""
    if chart.kind == "none" or chart.frame.empty:
        return None
    bars = len(dict.fromkeys(chart.frame[chart.x]))
    lanes = len(dict.fromkeys(chart.frame[chart.series])) if chart.series else 1
    height = _BAR_HEIGHT * bars * lanes if _lies(chart) else _HEIGHT
    drawn: Any = _MARKS[chart.kind](alt.Chart(chart.frame)).encode(
        **_places(chart), **_colours(chart), tooltip=_told(chart)
    )
    title = alt.Title(f"{chart.y} by {chart.x}", anchor="start", color=_INK, fontSize=13, fontWeight=500)
    sized = drawn.properties(width="container", height=height, title=title, usermeta={"embedOptions": _EMBEDDED})
    clear: alt.Chart = sized.configure(background="transparent").configure_view(stroke=None).configure_axis(**_AXIS)
    legend = {key: size for key, size in _AXIS.items() if key.startswith(("label", "title"))} | {"orient": "bottom"}
    named: alt.Chart = clear.configure_legend(**legend)
    return named


def _lies(chart: Chart) -> bool:
    """Whether the bars lie, longest first, with room for their labels: unless they have an order of their own, as years do."""
    return chart.kind == "bar" and not chart.in_order


def _colours(chart: Chart) -> dict[str, Any]:
    """A colour for each series. Its bars of one place stand next to each other: added up they would say that their sum means
    something."""
    if not chart.series:
        return {}
    colour = {"color": alt.Color(f"{chart.series}:N", scale=alt.Scale(scheme="tableau10"))}
    side = "yOffset" if _lies(chart) else "xOffset"
    return colour | ({side: f"{chart.series}:N"} if chart.kind == "bar" else {})


def _places(chart: Chart) -> dict[str, Any]:
    """The two axes, by their names in Vega-Lite."""
    numbers = alt.Axis(format=_format(chart))
    free = alt.Undefined if chart.kind == "bar" else alt.Scale(zero=False)  # bars begin at nought
    if _lies(chart):
        names = alt.Axis(labelLimit=180, title=None)
        return {"y": alt.Y(f"{chart.x}:N", sort="-x", axis=names), "x": alt.X(f"{chart.y}:Q", axis=numbers)}
    up = alt.Y(f"{chart.y}:Q", axis=numbers, scale=free)
    if chart.kind == "bar":
        bars = list(dict.fromkeys(chart.frame[chart.x]))
        names = alt.Axis(labelAngle=0 if len(bars) <= ACROSS else -45, labelLimit=80)
        return {"x": alt.X(f"{chart.x}:N", sort=bars, axis=names), "y": up}
    if str(chart.frame[chart.x].dtype).startswith("datetime"):
        return {"x": alt.X(f"{chart.x}:T"), "y": up}
    years = alt.Axis(format="d") if chart.in_order else alt.Axis()
    return {"x": alt.X(f"{chart.x}:Q", axis=years, scale=free), "y": up}


def _told(chart: Chart) -> list[alt.Tooltip]:
    series = [alt.Tooltip(chart.series)] if chart.series else []
    return [alt.Tooltip(chart.x), *series, alt.Tooltip(f"{chart.y}:Q", format=_format(chart))]


def _format(chart: Chart) -> str:
    """Whole numbers grouped; others with two decimals at most."""
    return ",d" if (chart.frame[chart.y] % 1 == 0).all() else ",.2~f"


_MARKS: dict[str, Callable[[alt.Chart], alt.Chart]] = {
    "bar": lambda made: made.mark_bar(color=_COLOUR),
    "line": lambda made: made.mark_line(color=_COLOUR, point=True),
    "scatter": lambda made: made.mark_circle(color=_COLOUR, opacity=0.7),
}
