"""Keys, values and tapped states of one sequence's tokens.

What is remembered per token of one sequence: keys and values, or tapped hidden states. Knows no model.

A step writes its rows directly after the committed ones. Committing a chain moves nothing, dropping rows costs nothing,
and of a tree path only the accepted rows that lie out of place are moved.

Hidden states of one sequence's tokens, a plane per tap: rows that it shares with the sequence that it continues, and its own
behind them. To copy those of a prompt would take as long as a forward, most of it for memory that was not in use before.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Generic, Self, TypeVar

from decoding.engine.target import Array

_SMALLEST = 256  # rows
Rows = TypeVar("Rows", bound=Array)


class TokenTable(Generic[Rows]):
    """A growing table of rows, one per token, in `planes` (layers, or taps). How many are valid is for the owner to know.

    empty: makes an array of a shape, whose numbers may be anything.
    """

    def __init__(self, planes: int, shape: tuple[int, ...], empty: Callable[[tuple[int, ...]], Rows]) -> None:
        self._empty = empty
        self.data = empty((planes, 0, *shape))  # [planes, capacity, *shape]

    def reserve(self, needed: int, keep: int) -> None:
        """Room for `needed` rows; the first `keep` survive. Capacity doubles, so a token is copied once on average."""
        planes, capacity, *shape = self.data.shape
        if needed <= capacity:
            return
        grown = max(_SMALLEST, 1 << (needed - 1).bit_length())
        old, self.data = self.data, self._empty((planes, grown, *shape))
        self.data[:, :keep] = old[:, :keep]

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Move row `start + rows[i]` to `start + i`; rows ascend. Those that lie in place already are not touched."""
        placed = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if placed == len(rows):
            return
        self.data[:, start + placed : start + len(rows)] = self.data[:, [start + row for row in rows[placed:]]]

    def copy_from(self, prefix: Rows) -> None:
        """Begin with the rows of `prefix` [planes, count, *shape], with room for some more."""
        count = prefix.shape[1]
        self.reserve(count + _SMALLEST, 0)
        self.data[:, :count] = prefix

    def first_rows(self, count: int) -> Self:
        """A table of a copy of the first `count` rows, with room for no more."""
        table = copy(self)
        table.data = self.copied(0, count)
        return table

    def joined(self, prefix: Rows, count: int) -> Rows:
        """A copy of the rows of `prefix` [planes, rows, *shape] and of the first `count` rows behind them."""
        planes, rows, *shape = prefix.shape
        copy = self._empty((planes, rows + count, *shape))
        copy[:, :rows], copy[:, rows:] = prefix, self.data[:, :count]
        return copy

    def copied(self, start: int, end: int) -> Rows:
        """A copy of the rows from `start` to `end` [planes, rows, *shape]."""
        planes, _, *shape = self.data.shape
        copy = self._empty((planes, end - start, *shape))
        copy[:] = self.data[:, start:end]
        return copy


class PrefixedTable(Generic[Rows]):
    """Rows that another table has, and a table of its own behind them. Committed rows are never written again, so whoever
    continues a sequence may read its first rows where they are.

    prefix [planes, rows, *shape]: a view of those; None: there is none. own: what follows.
    """

    def __init__(self, own: TokenTable[Any], prefix: Rows | None = None) -> None:
        self.own, self.prefix = own, prefix

    @property
    def shared(self) -> int:
        """Rows before its own."""
        return 0 if self.prefix is None else self.prefix.shape[1]

    @property
    def nbytes(self) -> int:
        """Of all rows, whoever shares them."""
        return int(self.own.data.nbytes) + (0 if self.prefix is None else self.prefix.nbytes)

    def reserve(self, needed: int, keep: int) -> None:
        """Room for `needed` rows in all; the first `keep` survive."""
        self.own.reserve(needed - self.shared, max(keep - self.shared, 0))

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """See `TokenTable.compact`."""
        self.own.compact(start - self.shared, rows)


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
