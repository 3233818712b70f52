"""Tables of one sequence's tokens on torch's operators: keys and values, which it shares with others."""

from functools import partial

import torch
from torch import Tensor

from decoding.targets.kv_cache import PrefixedTable, TokenTable


class TensorTable(TokenTable[Tensor]):
    """A table in a tensor of this type on this device."""

    def __init__(self, planes: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(planes, shape, partial(torch.empty, dtype=dtype, device=device))


WORTH_SHARING = 64  # rows


class SharedTable(PrefixedTable[Tensor]):
    """is_kept: whether these are the rows of a closed sequence."""

    own: TensorTable

    def __init__(self, own: TensorTable, prefix: Tensor | None = None, is_kept: bool = False) -> None:
        super().__init__(own, prefix)
        self.is_kept = is_kept
        self.is_lent = False  # whether others read rows of `own`, which must not serve another sequence then

    def begin(self, count: int, own: TensorTable) -> "SharedTable":
        """A table on `own`, which is empty, that begins with the first `count` rows.

        Those of an open sequence are shared. Those of a closed one are copied unless they were shared before, because the next
        sequence is likely to be alone, and attention over rows in two places takes more operators; for the same reason a few
        rows are copied, and what follows a prefix.
        """
        if self.prefix is None and not self.is_kept and count >= WORTH_SHARING:
            self.is_lent = True
            return SharedTable(own, self.own.data[:, :count])
        prefix = self.prefix[:, :count] if self.prefix is not None and count >= WORTH_SHARING else None
        if prefix is None or count > self.shared:
            own.copy_from(self._last_rows(count))
        return SharedTable(own, prefix)

    def _last_rows(self, count: int) -> Tensor:
        """Of the first `count` rows those behind the prefix; all of them where they are so few that none lie behind it."""
        if self.prefix is not None and count <= self.shared:
            return self.prefix[:, :count]
        return self.own.data[:, : count - self.shared]

    def kept(self, count: int) -> "SharedTable":
        """The first `count` rows, to stay when the sequence is closed: a copy of those that are its own."""
        prefix = None if self.prefix is None else self.prefix[:, :count]
        return SharedTable(self.own.first_rows(max(count - self.shared, 0)), prefix, is_kept=True)
