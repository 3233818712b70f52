"""Writes cells as people read them: amounts grouped and with two useful decimals, years and ids as they are, dates as dates."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from math import floor, isfinite, log10
from typing import Any

from agent.graph.presentation.shown import Kind
from tools.linking.word_forms import name_words

NOTHING = "–"
DECIMALS = 2
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
