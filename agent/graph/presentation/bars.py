"""Which rows are drawn as bars, and how long each bar is. A terminal and the page draw the same."""

from collections.abc import Sequence
from typing import Any

LEAST_BARS = 3
"""Rows below this number are read faster than bars."""


def bar_lengths(rows: Sequence[Sequence[Any]], kinds: Sequence[str]) -> list[float]:
    """A length from 0 to 1 for each row, where that says more than its number: one amount, none below 0, beside what it is of.

    >>> bar_lengths([["Ann", 4], ["Bo", 1], ["Cy", None]], ["text", "amount"])
    [1.0, 0.25, 0.0]
    >>> bar_lengths([["Ann", 4], ["Bo", -1], ["Cy", 2]], ["text", "amount"])
    []
    """
    amounts = [place for place, kind in enumerate(kinds) if kind == "amount"]
    if len(amounts) != 1 or len(kinds) < 2 or len(rows) < LEAST_BARS:
        return []
    values = [float(row[amounts[0]] or 0) for row in rows]
    largest = max(values)
    if not all(0 <= value < float("inf") for value in values) or not largest:
        return []
    return [value / largest for value in values]
