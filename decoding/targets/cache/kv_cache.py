"""What is remembered per token of one sequence: keys and values, or tapped hidden states. Knows no model.

A step writes its rows directly after the committed ones. Committing a chain moves nothing, dropping rows costs nothing,
and of a tree path only the accepted rows that lie out of place are moved.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_SMALLEST = 256  # rows


class TokenTable:
    """A growing table of rows, one per token, in `planes` (layers, or taps). How many are valid is for the owner to know."""

    def __init__(self, planes: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.empty(planes, 0, *shape, dtype=dtype, device=device)  # [planes, capacity, *shape]

    def reserve(self, needed: int, keep: int) -> None:
        """Room for `needed` rows; the first `keep` survive. Capacity doubles, so a token is copied once on average."""
        planes, capacity, *shape = self.data.shape
        if needed <= capacity:
            return
        grown = max(_SMALLEST, 1 << (needed - 1).bit_length())
        old, self.data = self.data, self.data.new_empty(planes, grown, *shape)
        self.data[:, :keep] = old[:, :keep]

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Move row `start + rows[i]` to `start + i`; rows ascend. Those that lie in place already are not touched."""
        placed = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if placed == len(rows):
            return
        source = torch.tensor(rows[placed:], device=self.data.device) + start
        self.data[:, start + placed : start + len(rows)] = self.data.index_select(1, source)

    def copy_from(self, prefix: Tensor) -> None:
        """Begin with the rows of `prefix` [planes, count, *shape], with room for some more."""
        count = prefix.shape[1]
        self.reserve(count + _SMALLEST, 0)
        self.data[:, :count] = prefix
