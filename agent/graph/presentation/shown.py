"""What people are shown of a result: headings, cells with their kinds, and how the rows are sorted. Data only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tools.result import Result

Kind = Literal["amount", "digits", "time", "text", "other"]
"""Of a column's cells: amounts are grouped and rounded; digits (ids, years, codes) are numbers that are not."""
MOST_TIED = 20
"""Rows that share a place are counted up to this number."""
_TYPES = {"digits": "BIGINT", "amount": "DOUBLE", "time": "TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column as people see it.

    counts: what it counts in the plural, `albums`; empty if it counts nothing. is_key: its cells are keys, whose names may
    stand beside them. is_label: its cells name things, in the plural `of`. measure: it is computed from several rows.
    """

    heading: str
    kind: Kind
    counts: str = ""
    is_key: bool = False
    is_label: bool = False
    of: str = ""
    measure: bool = False


@dataclass(frozen=True, slots=True)
class Sorting:
    """The rows are sorted by the column at this place; `only`: that many rows at most were asked for."""

    place: int
    descending: bool
    only: int | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """`given`: the places of the query's own columns, in the query's order. `tied`: the rows that share the place of the only
    row, that row among them, `MOST_TIED` and one at most; empty where it is the only one.
    """

    columns: tuple[ShownColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    given: tuple[int, ...]
    truncated: bool = False
    sorting: Sorting | None = None
    tied: tuple[tuple[Any, ...], ...] = ()

    def with_column(self, place: int, column: ShownColumn, cells: Sequence[Any]) -> "Shown":
        """With one more column before the one at `place`."""
        rows = tuple((*row[:place], cell, *row[place:]) for row, cell in zip(self.rows, cells, strict=True))
        sorting = self.sorting
        if sorting and sorting.place >= place:
            sorting = replace(sorting, place=sorting.place + 1)
        return replace(
            self,
            columns=(*self.columns[:place], column, *self.columns[place:]),
            rows=rows,
            given=tuple(each + (each >= place) for each in self.given),
            sorting=sorting,
        )

    def names_first(self) -> "Shown":
        """With the columns that say what a row is before those that were computed about it."""
        order = sorted(range(len(self.columns)), key=lambda place: self.columns[place].measure)
        place_of = {old: new for new, old in enumerate(order)}
        sorting = self.sorting and replace(self.sorting, place=place_of[self.sorting.place])
        return replace(
            self,
            columns=tuple(self.columns[place] for place in order),
            rows=tuple(tuple(row[place] for place in order) for row in self.rows),
            given=tuple(place_of[each] for each in self.given),
            sorting=sorting,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists: headings, the kinds of their cells, rows."""
        return {
            "headings": [column.heading for column in self.columns],
            "kinds": [column.kind for column in self.columns],
            "rows": [list(row) for row in self.rows],
        }


def shown_as_result(shown: Shown, result: Result) -> Result:
    """What is shown as rows to export: with headings, and with types, the query's own where a column is its own."""
    own = dict(zip(shown.given, result.types, strict=True))
    types = tuple(own.get(place, _TYPES.get(column.kind, "VARCHAR")) for place, column in enumerate(shown.columns))
    return replace(result, columns=tuple(column.heading for column in shown.columns), types=types, rows=shown.rows)
