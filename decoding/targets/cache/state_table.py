"""Hidden states of one sequence's tokens, a plane per tap: rows that it shares with the sequence that it continues, and its own
behind them. To copy those of a prompt would take as long as a forward, most of it for memory that was not in use before.
"""

from typing import Any

from decoding.engine.target import Array
from decoding.targets.cache.kv_cache import PrefixedTable, Rows, TokenTable


class StateTable(PrefixedTable[Rows]):
    """first: the row from which on `own` has the rows where there is no prefix; those before it are nobody's."""

    def __init__(self, own: TokenTable[Any], prefix: Rows | None = None, first: int = 0) -> None:
        super().__init__(own, prefix)
        self._first = first

    @property
    def shared(self) -> int:
        return self._first if self.prefix is None else super().shared

    def write(self, plane: int, row: int, states: Array) -> None:
        """Those of one tap [rows, hidden], from a row on that is its own."""
        self.own.data[plane, row - self.shared : row - self.shared + len(states)] = states

    def copied(self, start: int, end: int) -> Any:
        """[rows, planes, hidden] of rows of its own."""
        return self.own.copied(start - self.shared, end - self.shared).swapaxes(0, 1)

    def rows(self, count: int) -> Any:
        """[planes, count, hidden] of the first rows: a view where all lie in one place, else a copy."""
        if self.prefix is not None and count <= self.shared:
            return self.prefix[:, :count]
        if self.prefix is None:
            return self.own.data[:, :count]
        return self.own.joined(self.prefix, count - self.shared)
