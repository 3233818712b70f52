"""Takes at most so many rows and so many bytes from a cursor. Runs no SQL."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tools.result import Limits

BATCH = 32


def fetch_rows(
    fetchmany: Callable[[int], Sequence[Sequence[Any]]], limits: Limits
) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """The first `limits.max_rows` rows, and whether there was one more.

    Raises MemoryError when the rows weigh more than `limits.memory_limit_mb` MiB: what an engine hands over is no longer
    in the memory that the engine limits.
    """
    rows: list[tuple[Any, ...]] = []
    room = limits.memory_limit_mb << 20
    while wanted := limits.max_rows + 1 - len(rows):
        batch = fetchmany(min(BATCH, wanted))
        if not batch:
            break
        room -= sum(sys.getsizeof(value) for row in batch for value in row)
        if room < 0:
            raise MemoryError(f"the rows take more than {limits.memory_limit_mb} MiB; select fewer or shorter columns")
        rows.extend(tuple(row) for row in batch)
    return tuple(rows[: limits.max_rows]), len(rows) > limits.max_rows
