"""The tree-attention kernel against torch's own attention with a dense mask."""

import pytest
import torch

from kernels.ragged import Ragged
from kernels.tree_attention import tree_attention, tree_attention_reference
from tests.kernels.ragged_data import DEVICE, mixed_batch, part, tree

LAYERS, LAYER, KV_HEADS = 2, 1, 2


@pytest.mark.parametrize(("dim", "group", "splits"), [(16, 3, 1), (8, 1, 4)])
def test_sequences_of_several_lengths(dim: int, group: int, splits: int) -> None:
    """A wrong length, parent, plane or split shows; so do rows that see what follows them, and splits without keys."""
    torch.manual_seed(0)
    ragged = mixed_batch(2 * LAYERS * KV_HEADS, dim)
    used = int(ragged.count.sum())
    query = torch.randn(ragged.rows, KV_HEADS * group, dim, device=DEVICE)
    want = tree_attention_reference(query, ragged, LAYER, KV_HEADS)[:used]
    torch.testing.assert_close(tree_attention(query, ragged, LAYER, KV_HEADS, splits)[:used], want, rtol=0, atol=5e-6)


def test_buffers_are_filled_again() -> None:
    """Trees of the forward before leave no trace, nor do its tables."""
    torch.manual_seed(2)
    ragged = Ragged(2, 10, 8, DEVICE)
    query = torch.randn(10, 2, 16, device=DEVICE)
    for parts in ([part(7, tree(6), 2, 16), part(0, 3, 2, 16)], [part(9, tree(5), 2, 16)], [part(1, 6, 2, 16)]):
        ragged.fill(parts)
        used = sum(len(each.tokens) for each in parts)
        want = tree_attention_reference(query, ragged, 0, 1)[:used]
        torch.testing.assert_close(tree_attention(query, ragged, 0, 1, splits=1)[:used], want, rtol=0, atol=5e-6)
