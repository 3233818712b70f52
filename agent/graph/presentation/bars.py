"""Which rows are drawn as bars, and how long each bar is. A terminal and the page draw the same."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

LARGEST = 1e300
LEAST_BARS = 3
"""Rows below this number are read faster than bars."""


def bar_lengths(rows: Sequence[Sequence[Any]], kinds: Sequence[str]) -> list[float]:
    """A length from 0 to 1 for each row, where that says more than its number: one amount beside what it is of, none below 0,
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
