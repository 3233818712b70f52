"""Tables on a GPU whose accepted rows are moved together: the moves of all sequences of a round are one or two launches.

A commit only notes its move. Whoever asks for a table's numbers next, such as the next forward, has all noted moves made.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.targets.cache.tensor_table import TensorTable
from kernels.compaction import Move, compact


class Moves:
    """Moves of several tables that are noted and not yet made."""

    def __init__(self) -> None:
        self._noted: list[Move] = []

    def note(self, table: Tensor, start: int, rows: Sequence[int]) -> None:
        """The table must have no move noted already."""
        self._noted.append(Move(table, start, rows))

    @torch.inference_mode()
    def make(self) -> None:
        noted, self._noted = self._noted, []
        if noted:
            compact(noted)


class CudaTable(TensorTable):
    """A table that notes its moves. Its `data` are always up to date."""

    def __init__(
        self, moves: Moves, planes: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._moves = moves
        super().__init__(planes, shape, dtype, device)

    @property
    def data(self) -> Tensor:
        """[planes, capacity, *shape]."""
        self._moves.make()
        return self._data

    @data.setter
    def data(self, data: Tensor) -> None:
        self._data = data

    def compact(self, start: int, rows: Sequence[int]) -> None:
        self._moves.note(self._data, start, rows)
