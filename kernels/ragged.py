"""Rows of several sequences in one forward: the numbers from which kernels know which rows belong to which sequence.

All are in buffers of fixed size and address, so that a captured CUDA graph reads what was filled in last. Each sequence has its
own table of keys and values, [2 * layers * kv_heads, capacity, head_dim], with the plane of (layer, key or value, head) at
``(2 * layer + is_value) * kv_heads + head``. It may move or grow between forwards, because kernels read its address.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ROW_FACTS, _SEQUENCE_FACTS = 4, 6


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows that one sequence feeds to a forward.

    table: its keys and values, with room for the rows. before: tokens in the table already, all of which the rows see.
    tokens, positions: of the rows. seen: bool [rows, rows] on the CPU: which of the rows each row sees, never a later one;
    None: all up to itself.
    """

    table: Tensor
    before: int
    tokens: Sequence[int]
    positions: Sequence[int]
    seen: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)


class Ragged:
    """Buffers for up to `sequences` sequences that feed up to `rows` rows together and up to `width` each."""

    def __init__(self, sequences: int, rows: int, width: int, device: torch.device | str) -> None:
        self.rows, self.width = rows, width
        self._host = torch.zeros(_ROW_FACTS * rows + _SEQUENCE_FACTS * sequences, dtype=torch.long)
        self._facts = self._host.to(device)
        split = _ROW_FACTS * rows
        # [rows]: token id; position in the text; index of its sequence, -1 for none; its row in that sequence's table
        self.token, self.position, self.owner, self.slot = self._facts[:split].view(_ROW_FACTS, rows)
        # [sequences]: the table's address and capacity; first row and number of rows here; tokens before; no tree
        self.address, self.capacity, self.first, self.count, self.before, self.causal = self._facts[split:].view(
            _SEQUENCE_FACTS, sequences
        )
        self.seen = torch.zeros(rows, width, dtype=torch.uint8, device=device)  # read where `causal` is 0
        self.fill([])

    @classmethod
    def of(cls, parts: Sequence[SequenceRows]) -> "Ragged":
        """Buffers of exactly the needed size."""
        counts = [len(part) for part in parts]
        ragged = cls(len(parts), sum(counts), max(counts), parts[0].table.device)
        ragged.fill(parts)
        return ragged

    @property
    def sequences(self) -> int:
        return len(self.count)

    def fill(self, parts: Sequence[SequenceRows]) -> None:
        """Describe the next forward. Rows are ordered by sequence; leftover rows belong to none."""
        self.parts = list(parts)  # the references use these
        self._host.zero_()
        by_row = self._host[: _ROW_FACTS * self.rows].view(_ROW_FACTS, -1)
        by_sequence = self._host[_ROW_FACTS * self.rows :].view(_SEQUENCE_FACTS, -1)
        by_row[2] = -1
        first = 0
        for index, part in enumerate(parts):
            count, table = len(part), part.table
            slots = range(part.before, part.before + count)
            by_row[:, first : first + count] = torch.tensor([part.tokens, part.positions, [index] * count, slots])
            facts = table.data_ptr(), table.shape[1], first, count, part.before, part.seen is None
            by_sequence[:, index] = torch.tensor(facts)
            if part.seen is not None:
                self.seen[first : first + count, :count] = part.seen.to(self.seen)
            first += count
        self._facts.copy_(self._host)
