"""Sequences of several lengths with random trees, on the GPU if there is one, for the tests of the kernels."""

import torch
from torch import Tensor

from kernels.gpu.ragged import Ragged, SequenceRows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tree(nodes: int, pending: int = 1) -> Tensor:
    """Which rows see which: `pending` in a chain, then nodes with random parents below the last of them."""
    seen = torch.ones(pending + nodes, pending + nodes, dtype=torch.bool).tril()
    for row in range(pending, pending + nodes):
        parent = int(torch.randint(pending - 1, row, ()))
        seen[row] = seen[parent]
        seen[row, row] = True
    return seen


def part(before: int, seen: Tensor | int, planes: int, dim: int, capacity: int = 0, shared: int = 0) -> SequenceRows:
    """A sequence with a random table and `before` tokens, that feeds a tree, or a chain of so many rows. shared: of the tokens
    before, which are a view of another table."""
    count = seen if isinstance(seen, int) else len(seen)
    table = torch.randn(planes, max(capacity, before - shared + count), dim, device=DEVICE)
    mask = None if isinstance(seen, int) else seen
    prefix = torch.randn(planes, shared + 5, dim, device=DEVICE)[:, :shared] if shared else None
    return SequenceRows(table, before, list(range(count)), list(range(before, before + count)), mask, prefix)


def mixed_batch(planes: int, dim: int, spare: int = 3) -> Ragged:
    """A chain, a tree behind a text of nearly two tiles, a prompt, and two that share what goes before, with more of their own
    or without; rows and a sequence are left over."""
    parts = [
        part(5, 4, planes, dim, capacity=12),
        part(124, tree(5, pending=2), planes, dim),
        part(0, 20, planes, dim),
        part(150, tree(5, pending=2), planes, dim, shared=70),
        part(66, 3, planes, dim, capacity=9, shared=66),
    ]
    rows = sum(len(each.tokens) for each in parts)
    ragged = Ragged(len(parts) + 1, rows + spare, 20, DEVICE)
    ragged.fill(parts)
    return ragged
