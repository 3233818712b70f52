"""What people are shown of a result: headings, cells with their kinds, how the rows are sorted, and bars. Data only.

Cells are written as people read them: amounts grouped and with two useful decimals, years and ids as they are, dates as dates.
Which rows are drawn as bars, and how long each bar is, is the same for a terminal and the page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from math import floor, isfinite, log10
from typing import Any, Literal

from tools.linking.word_forms import name_words
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
    stand next to them. is_label: its cells name things, in the plural `of`. measure: it is computed from several rows.
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
    row, that row among them, `MOST_TIED` and one at most; empty where it is the only one. `statement`: one query that gives
    these rows under these headings; empty where only the query's own is known to give them. `done`: what the query did.
    """

    columns: tuple[ShownColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    given: tuple[int, ...]
    truncated: bool = False
    sorting: Sorting | None = None
    tied: tuple[tuple[Any, ...], ...] = ()
    statement: str = ""
    done: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain lists: headings, the kinds of their cells, rows, the statement that gives them, and what it did."""
        return {
            "headings": [column.heading for column in self.columns],
            "kinds": [column.kind for column in self.columns],
            "rows": [list(row) for row in self.rows],
            "statement": self.statement,
            "done": self.done,
        }


def shown_as_result(shown: Shown, result: Result) -> Result:
    """What is shown as rows to export: with headings, and with types, the query's own where a column is its own."""
    own = dict(zip(shown.given, result.types, strict=True))
    types = tuple(own.get(place, _TYPES.get(column.kind, "VARCHAR")) for place, column in enumerate(shown.columns))
    return replace(result, columns=tuple(column.heading for column in shown.columns), types=types, rows=shown.rows)


NOTHING = "–"
DECIMALS = 2
_IN_SHORT = 2  # rows and columns
_YEARS = (1000, 2200)
_NO_AMOUNTS = frozenset(
    ["id", "year", "code", "zip", "postcode", "zipcode", "phone", "isbn", "number", "no", "nr", "key"]
)


def kind_of_cells(name: str, cells: Iterable[Any], is_key: bool, is_computed: bool) -> Kind:
    """The kind of a column's cells. Whole numbers of a column that is called a year, or all of which might be one, are
    digits; computed ones, such as counts, are amounts.
    """
    known = [cell for cell in cells if cell is not None]
    if known and all(isinstance(cell, date | time) for cell in known):
        return "time"
    if known and all(_is_number(cell) for cell in known):
        whole = all(isinstance(cell, int) for cell in known)
        named = not _NO_AMOUNTS.isdisjoint(name_words(name))
        as_years = whole and all(_YEARS[0] <= cell <= _YEARS[1] for cell in known)
        return "digits" if is_key or (not is_computed and whole and (named or as_years)) else "amount"
    return "text" if known and all(isinstance(cell, str) for cell in known) else "other"


def in_column(cells: Sequence[Any], kind: Kind) -> list[str]:
    """The cells of one column as text, amounts with the same number of decimals.

    >>> in_column([26.253333, 3, None], "amount"), in_column([2010], "digits"), in_column([28000], "amount")
    (['26.25', '3.00', '–'], ['2010'], ['28,000'])
    """
    if kind != "amount":
        return [cell_text(cell, kind) for cell in cells]
    decimals = max((_decimals(cell) for cell in cells if _is_number(cell)), default=0)
    return [_amount(cell, decimals) if _is_number(cell) else cell_text(cell, "other") for cell in cells]


def cell_text(cell: Any, kind: Kind = "other") -> str:
    """One cell as text."""
    if cell is None:
        return NOTHING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if kind == "amount" and _is_number(cell):
        return _amount(cell, _decimals(cell))
    if isinstance(cell, datetime):
        return cell.isoformat(" ", "seconds").removesuffix(" 00:00:00")
    if kind == "time" and isinstance(cell, str):  # as a record keeps it
        return cell.removesuffix(" 00:00:00")
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, bytes | bytearray):
        return f"({len(cell):,} bytes)"
    return str(cell)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float | Decimal) and not isinstance(cell, bool)


def _decimals(cell: Any) -> int:
    """Two for a number with a fraction, more for one below 0.1 so that two digits show, none for a whole one."""
    value = float(cell)
    if not isfinite(value) or value == int(value):
        return 0
    return DECIMALS if abs(value) >= 0.1 else min(12, DECIMALS - 1 - floor(log10(abs(value))))


def _amount(cell: Any, decimals: int) -> str:
    return f"{cell:,.{decimals}f}"


LARGEST = 1e300
LEAST_BARS = 3
"""Rows below this number are read faster than bars."""


def bar_lengths(rows: Sequence[Sequence[Any]], kinds: Sequence[str]) -> list[float]:
    """A length from 0 to 1 for each row, where that says more than its number: one amount next to what it is of, none below 0,
    and not all of them the same.

    >>> bar_lengths([["Ann", 4], ["Bo", 1], ["Cy", None]], ["text", "amount"])
    [1.0, 0.25, 0.0]
    >>> bar_lengths([["Ann", 4], ["Bo", -1], ["Cy", 2]], ["text", "amount"])
    []
    """
    amounts = [place for place, kind in enumerate(kinds) if kind == "amount"]
    if len(amounts) != 1 or len(kinds) < 2 or len(rows) < LEAST_BARS:
        return []
    values = [0 if row[amounts[0]] is None else row[amounts[0]] for row in rows]
    if not all(isinstance(value, int | float | Decimal) and 0 <= value < LARGEST for value in values):
        return []
    largest = max(values)
    return [float(value / largest) for value in values] if min(values) < largest else []


def in_short(result: Result) -> str:
    """A result in a few words, by which readings are told apart: its only value, or how many rows there are and the first two.

    >>> in_short(Result(("n",), ("BIGINT",), ((12000,),), False, 0.1))
    '12,000'
    """
    cells = [[row[place] for row in result.rows] for place in range(len(result.columns))]
    kinds = [
        kind_of_cells(name, own, is_key=False, is_computed=False)
        for name, own in zip(result.columns, cells, strict=True)
    ]
    first = [
        " ".join(cell_text(cell, kind) for cell, kind in zip(row[:_IN_SHORT], kinds, strict=False))
        for row in result.rows[:_IN_SHORT]
    ]
    if len(result.rows) == 1:
        return first[0]
    more = " …" if len(result.rows) > len(first) else ""
    return f"{len(result.rows):,} rows: {', '.join(first)}{more}" if first else "no rows"
