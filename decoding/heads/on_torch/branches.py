"""Rows that a drafter has computed after a sequence's committed ones: keys and values by level, and the attention mask."""

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.heads.modules.layer import KeysValues
from kernels.transfer import sent


class Branches:
    """The tree of one round.

    committed: each layer's keys and values of the committed rows, which every node sees. size: rows per node; the rows of a
    node see each other.
    """

    def __init__(self, committed: Sequence[KeysValues], size: int = 1) -> None:
        self._levels, self._size = [list(committed)], size
        self._committed, self._device = committed[0][0].shape[1], committed[0][0].device
        # [nodes of the last level, drafted rows]: which rows each node sees; the root sees none.
        self._seen = torch.zeros(1, 0, dtype=torch.bool, device=self._device)

    def known(self, layer: int = 0) -> list[KeysValues]:
        """All keys and values of a layer, in the order of `visible`."""
        return [level[layer] for level in self._levels]

    def visible(self, parents: Sequence[int]) -> Tensor:
        """[nodes * size, committed + drafted + nodes * size]: what the next level's rows see. parents: in the last level."""
        nodes = len(parents)
        own = torch.eye(nodes, dtype=torch.bool, device=self._device).repeat_interleave(self._size, 1)
        self._next = torch.cat([self._seen[sent(parents, self._device)], own], 1)
        committed = torch.ones(nodes, self._committed, dtype=torch.bool, device=self._device)
        return torch.cat([committed, self._next], 1).repeat_interleave(self._size, 0)

    def grow(self, own: Sequence[KeysValues]) -> None:
        """Add the next level's keys and values by layer; its nodes are those of the last call of `visible`."""
        self._levels.append(list(own))
        self._seen = self._next


def no_rows(kv_heads: int, head_dim: int, like: Tensor) -> KeysValues:
    """Keys and values of no rows."""
    empty = like.new_empty(kv_heads, 0, head_dim)
    return empty, empty


def joined(*parts: KeysValues) -> KeysValues:
    """The keys and the values of all parts, concatenated along the rows."""
    keys, values = zip(*parts, strict=True)
    return torch.cat(keys, 1), torch.cat(values, 1)
