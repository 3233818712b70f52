"""Which chart fits a result, by the shape of its columns, and the data for it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

Kind = Literal["bar", "line", "scatter", "none"]
KINDS: tuple[Kind, ...] = ("bar", "line", "scatter", "none")
MOST_BARS, MOST_POINTS = 40, 2000
_DATE = re.compile(r"\d{4}-\d\d(-\d\d)?([ T]\d\d:\d\d.*)?")
_TIME_NAME = re.compile(r"\b(year|month|week|day|date|quarter)s?\b")
_KEY_NAME = re.compile(r"(^|_)id$")


@dataclass(frozen=True, slots=True)
class Chart:
    """`frame` has the columns `x` and `y`, by these names; they stand for the result's columns at `indices`."""

    kind: Kind
    x: str
    y: str
    frame: pd.DataFrame
    indices: tuple[int, int] | None = None

    @property
    def order(self) -> list[str] | None:
        """Bars stand in the order of the rows."""
        return list(dict.fromkeys(self.frame[self.x])) if self.kind == "bar" else None

    @property
    def y_range(self) -> list[float] | None:
        """Bars start at zero; None leaves the range to the chart."""
        if self.kind != "bar" or self.frame[self.y].dropna().empty:
            return None
        return [min(0.0, float(self.frame[self.y].min())), max(0.0, float(self.frame[self.y].max())) * 1.05]


@dataclass(frozen=True, slots=True)
class Shape:
    """Column indices by what they hold."""

    numbers: list[int]
    times: list[int]
    labels: list[int]


def suggest(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Chart:
    """A line over time, bars over labels, points over two numbers; none for a single row or without numbers."""
    shape = _shape(columns, rows)
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


def draw(kind: Kind, columns: Sequence[str], rows: Sequence[Sequence[Any]], x: int, y: int) -> Chart:
    """A chart of two columns by their indices; bars beyond the first 40 and points beyond 2,000 are left out."""
    if kind == "none" or not columns:
        return Chart("none", "", "", pd.DataFrame())
    most = MOST_BARS if kind == "bar" else MOST_POINTS
    pairs = [(row[x], _number(row[y])) for row in rows[:most] if row[x] is not None]
    names = (_axis(columns[x], "x"), _axis(columns[y], "y"))
    names = names if names[0] != names[1] else (names[0], f"{names[1]} again")
    frame = pd.DataFrame(pairs, columns=list(names))
    if kind == "bar":
        frame[names[0]] = frame[names[0]].map(str)
    elif kind == "scatter":
        frame[names[0]] = frame[names[0]].map(_number)
    elif frame[names[0]].map(_is_date).all():
        frame[names[0]] = pd.to_datetime(frame[names[0]], format="mixed")
    return Chart(kind, *names, frame, (x, y))


def _axis(column: str, otherwise: str) -> str:
    """A column's name without what a plot takes for a path into its data, such as dots and brackets."""
    return " ".join(re.sub(r"\W+", " ", column).split()) or otherwise


def _shape(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Shape:
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
    except (TypeError, ValueError):
        return None
