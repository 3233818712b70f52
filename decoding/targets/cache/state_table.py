"""Hidden states of one sequence's tokens, a plane per tap: rows that it shares with the sequence that it continues, and its own
behind them.

Committed rows are never written again, so whoever continues a sequence reads its first rows where they are. To copy those of a
prompt would take as long as a forward, most of it for memory that was not in use before.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from decoding.engine.target import Array
from decoding.targets.cache.kv_cache import TokenTable

Rows = TypeVar("Rows", bound=Array)


class StateTable(Generic[Rows]):
    """prefix [planes, rows, hidden]: a view of another table's rows; None: there is none. own: what follows, from row `first`
    on, where the rows before it are not the prefix's but nobody's.
    """

    def __init__(self, own: TokenTable[Any], prefix: Rows | None = None, first: int = 0) -> None:
        self._own, self._prefix = own, prefix
        self._first = first if prefix is None else prefix.shape[1]

    @property
    def nbytes(self) -> int:
        """Of all rows, whoever shares them."""
        return int(self._own.data.nbytes) + (0 if self._prefix is None else self._prefix.nbytes)

    def reserve(self, needed: int, keep: int) -> None:
        """Room for `needed` rows in all; the first `keep` survive."""
        self._own.reserve(needed - self._first, max(keep - self._first, 0))

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """See `TokenTable.compact`."""
        self._own.compact(start - self._first, rows)

    def write(self, plane: int, row: int, states: Array) -> None:
        """Those of one tap [rows, hidden], from a row on that is its own."""
        self._own.data[plane, row - self._first : row - self._first + len(states)] = states

    def copied(self, start: int, end: int) -> Any:
        """[rows, planes, hidden] of rows of its own."""
        return self._own.copied(start - self._first, end - self._first).swapaxes(0, 1)

    def rows(self, count: int) -> Any:
        """[planes, count, hidden] of the first rows: a view where all lie in one place, else a copy."""
        if self._prefix is not None and count <= self._first:
            return self._prefix[:, :count]
        if self._prefix is None:
            return self._own.data[:, :count]
        return self._own.joined(self._prefix, count - self._first)
