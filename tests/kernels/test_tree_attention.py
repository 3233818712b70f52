"""The tree-attention kernel against torch's own attention with a dense mask."""

import pytest
import torch

from kernels.gpu.ragged import Ragged
from kernels.gpu.tree_attention import tree_attention, tree_attention_reference
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


def test_few_keys_are_not_split_among_many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured grid has room for the longest text. Programs without enough keys write no parts that others must read."""
    torch.manual_seed(3)
    ragged = Ragged(2, 8, 4, DEVICE)
    ragged.fill([part(9, 3, 2, 16), part(300, tree(3), 2, 16)])
    buffers: list[torch.Tensor] = []
    new_empty = torch.Tensor.new_empty

    def remembered(self: torch.Tensor, *sizes: int, **options: torch.dtype) -> torch.Tensor:
        buffers.append(new_empty(self, *sizes, **options).fill_(77.0))
        return buffers[-1]

    query = torch.randn(8, 2, 16, device=DEVICE)
    want = tree_attention_reference(query, ragged, 0, 1)[:7]
    monkeypatch.setattr(torch.Tensor, "new_empty", remembered)
    torch.testing.assert_close(tree_attention(query, ragged, 0, 1, splits=4)[:7], want, rtol=0, atol=5e-6)
    mixed, softmax = parts = buffers[:2]  # the interpreter makes others for itself
    written = [[bool((buffer[split, row] != 77).any()) for split in range(4)] for buffer in parts for row in (0, 3)]
    assert len(mixed) == len(softmax) == 4
    assert written == [[True, False, False, False], [True, True, True, False]] * 2
