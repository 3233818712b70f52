"""Chooses the few values that show what a column holds. Reads rows it is given; runs no SQL."""

from collections.abc import Iterable, Sequence
from typing import Any

ROWS_LOOKED_AT = 200
MAX_LENGTH = 40
PER_COLUMN = 3
VIEWS_S = 3.0
"""For all views of a database together: what they run is somebody's SQL."""


def samples(rows: Iterable[Sequence[Any]], width: int) -> list[tuple[str, ...]]:
    """For each of `width` columns its first three distinct values of at most 40 characters, without NULL and blanks.

    First seen, not commonest: deterministic, and bounded by the 200 rows that callers fetch.
    """
    found: list[dict[str, None]] = [{} for _ in range(width)]
    for row in rows:
        for seen, value in zip(found, row, strict=True):
            if len(seen) < PER_COLUMN and value is not None and not isinstance(value, bytes):
                text = str(value)
                if text.strip() and len(text) <= MAX_LENGTH:
                    seen.setdefault(text)
    return [tuple(seen) for seen in found]
