"""Rows of several sequences in one forward: the numbers from which kernels know which rows belong to which sequence.

All are in buffers of fixed size and address, so that a captured CUDA graph reads what was filled in last. Each sequence has its
own table of keys and values, [2 * layers * kv_heads, capacity, head_dim], with the plane of (layer, key or value, head) at
``(2 * layer + is_value) * kv_heads + head``, or such a table in FP8 (`kernels.gpu.rope`). It may move or grow between
forwards, because kernels read its address.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.gpu.tables import send_into

_ROW_FACTS, _SEQUENCE_FACTS = 4, 9


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows that one sequence feeds to a forward.

    table: its keys and values, with room for the rows. before: tokens before the rows, which see all of them. tokens,
    positions: of the rows. seen: bool [rows, rows] on the CPU: which of the rows each row sees, never a later one; None: all
    up to itself. prefix [planes, tokens, head_dim]: keys and values of its first tokens, which it shares with other sequences;
    those in its table follow. None: there are none.
    """

    table: Tensor
    before: int
    tokens: Sequence[int]
    positions: Sequence[int]
    seen: Tensor | None = None
    prefix: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def shared(self) -> int:
        """Tokens of the prefix."""
        return 0 if self.prefix is None else self.prefix.shape[1]

    @property
    def slots(self) -> slice:
        """Of the rows in the table."""
        return slice(self.before - self.shared, self.before - self.shared + len(self))


class Ragged:
    """Buffers for up to `sequences` sequences that feed up to `rows` rows together and up to `width` each.

    heads: room for the rows whose logits are asked for. trees: whether there is room for rows that do not see all before them.
    scales_at: of the tables, see `kernels.gpu.rope`.
    All numbers go to the device in one copy, which nothing waits for.
    """

    def __init__(
        self,
        sequences: int,
        rows: int,
        width: int,
        device: torch.device | str,
        heads: int = 0,
        trees: bool = True,
        scales_at: int = 0,
    ) -> None:
        self.rows, self.width, self.heads, self.scales_at = rows, width, heads, scales_at
        self._sizes = _ROW_FACTS * rows, _SEQUENCE_FACTS * sequences, heads
        numbers = sum(self._sizes)
        self._buffer = torch.zeros(8 * numbers + rows * width * trees, dtype=torch.uint8, device=device)
        by_row, by_sequence, self.wanted = torch.split(self._buffer[: 8 * numbers].view(torch.long), list(self._sizes))
        # [rows]: token id; position in the text; index of its sequence, -1 for none; its row in that sequence's table
        self.token, self.position, self.owner, self.slot = by_row.view(_ROW_FACTS, rows)
        # [sequences]: the table's address and capacity; first row and number of rows here; tokens before; no tree; of the
        # prefix, the address, what its planes are apart, and how many tokens it has
        facts = by_sequence.view(_SEQUENCE_FACTS, sequences).unbind()
        self.address, self.capacity, self.first, self.count, self.before, self.causal, *prefix = facts
        self.prefix, self.prefix_capacity, self.shared = prefix
        seen = self._buffer[8 * numbers :]
        self.seen = seen.view(rows, width) if trees else seen  # read where `causal` is 0
        self.fill([])

    @classmethod
    def of(cls, parts: Sequence[SequenceRows], wanted: Sequence[int] = (), scales_at: int = 0) -> "Ragged":
        """Buffers of exactly the needed size."""
        counts, trees = [len(part) for part in parts], any(part.seen is not None for part in parts)
        ragged = cls(len(parts), sum(counts), max(counts), parts[0].table.device, len(wanted), trees, scales_at)
        ragged.fill(parts, wanted)
        return ragged

    @property
    def sequences(self) -> int:
        return len(self.count)

    def fill(self, parts: Sequence[SequenceRows], wanted: Sequence[int] = ()) -> None:
        """Describe the next forward. Rows are ordered by sequence; leftover rows belong to none.

        wanted: rows whose logits are asked for; leftover room for them names row 0.
        """
        self.parts = list(parts)  # the references use these
        numbers = sum(self._sizes)
        masked = sum(map(len, parts)) if any(part.seen is not None for part in parts) else 0
        host = np.zeros(8 * numbers + masked * self.width, dtype=np.uint8)
        by_row, by_sequence, heads = np.split(host[: 8 * numbers].view(np.int64), np.cumsum(self._sizes[:2]))
        by_row, by_sequence = by_row.reshape(_ROW_FACTS, -1), by_sequence.reshape(_SEQUENCE_FACTS, -1)
        seen = host[8 * numbers :].reshape(-1, self.width)
        by_row[2], heads[: len(wanted)], first = -1, wanted, 0
        for index, part in enumerate(parts):
            count, table, slots = len(part), part.table, range(part.slots.start, part.slots.stop)
            by_row[:, first : first + count] = part.tokens, part.positions, [index] * count, slots
            facts = table.data_ptr(), table.shape[1], first, count, part.before, part.seen is None
            by_sequence[:, index] = *facts, *_place(part.prefix), part.shared
            if part.seen is not None:
                seen[first : first + count, :count] = part.seen.numpy()
            first += count
        send_into(self._buffer, host)


def _place(prefix: Tensor | None) -> tuple[int, int]:
    """Address of a prefix, and of how many rows the planes are that it is a view of."""
    return (0, 0) if prefix is None else (prefix.data_ptr(), prefix.stride(0) // prefix.shape[2])
