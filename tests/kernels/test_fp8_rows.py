"""Keys and values in FP8: the kernels that write and read them against the references, and what the bytes mean."""

import pytest
import torch
from torch import Tensor

from kernels.gpu.compaction import Move, compact
from kernels.gpu.ragged import Ragged, SequenceRows
from kernels.gpu.rope import read_rows, rotate_and_store, rotate_and_store_reference, rounded, scale_planes, write_rows
from kernels.gpu.tree_attention import tree_attention, tree_attention_reference
from tests.kernels.ragged_data import DEVICE, tree

LAYERS, KV_HEADS, HEADS, DIM = 2, 3, 6, 16
PLANES = 2 * LAYERS * KV_HEADS


def small_table(capacity: int, filled: int) -> Tensor:
    """With random rows of very different sizes."""
    table = torch.zeros(PLANES + scale_planes(PLANES, DIM), capacity, DIM, dtype=torch.uint8, device=DEVICE)
    rows = torch.randn(PLANES, filled, DIM, device=DEVICE) * torch.logspace(-3, 3, PLANES, device=DEVICE)[:, None, None]
    write_rows(table, range(PLANES), slice(0, filled), rows, PLANES)
    return table


def batch() -> Ragged:
    """A chain, a tree behind more keys than a tile, a prompt, and a tree behind keys that it shares."""
    torch.manual_seed(0)
    seen = tree(5, pending=2)
    sizes = [(5, 4, None), (124, len(seen), seen), (0, 20, None)]
    parts = [
        SequenceRows(
            small_table(before + count + 3, before), before, [0] * count, [*range(before, before + count)], mask
        )
        for before, count, mask in sizes
    ]
    before, shared = 150, small_table(75, 75)[:, :70]
    table, places = small_table(before - 70 + len(seen), before - 70), [*range(before, before + len(seen))]
    parts.append(SequenceRows(table, before, [0] * len(seen), places, seen, shared))
    ragged = Ragged(5, 44, 20, DEVICE, scales_at=PLANES)
    ragged.fill(parts)
    return ragged


def test_a_row_is_near_what_it_was_and_its_bytes_depend_on_it_alone() -> None:
    torch.manual_seed(1)
    rows = torch.randn(7, DIM) * torch.logspace(-8, 8, 7)[:, None]
    rows[3] = 0.0
    small, scale = rounded(rows)
    again = small.float() * scale
    assert ((again - rows).abs() <= rows.abs() * 2**-4 + scale * 2**-10).all()
    assert torch.equal(small[4:5].view(torch.uint8), rounded(rows[4:5])[0].view(torch.uint8))


def test_what_was_written_is_read() -> None:
    """Rows of one plane and slot alone change."""
    torch.manual_seed(2)
    table, rows = small_table(6, 6), torch.randn(2, 3, DIM, device=DEVICE)
    before = read_rows(table, range(PLANES), 6, PLANES, torch.float32)
    write_rows(table, range(4, 6), slice(1, 4), rows, PLANES)
    after = read_rows(table, range(PLANES), 6, PLANES, torch.float32)
    small, scale = rounded(rows)
    assert torch.equal(after[4:6, 1:4], small.float() * scale)
    after[4:6, 1:4] = before[4:6, 1:4]
    assert torch.equal(after, before)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_kernel_writes_the_bytes_of_the_reference(layer: int) -> None:
    got, want = batch(), batch()
    rows = got.rows
    qkv = torch.randn(rows, HEADS + 2 * KV_HEADS, DIM, device=DEVICE)
    norm = torch.rand(HEADS + KV_HEADS, DIM, device=DEVICE)
    cos, sin = torch.randn(2, 200, DIM, device=DEVICE).unbind(0)
    rotate_and_store(qkv, norm, cos, sin, got, layer, KV_HEADS, 1e-6)
    rotate_and_store_reference(qkv, norm, cos, sin, want, layer, KV_HEADS, 1e-6)
    for one, other, before in zip(got.parts, want.parts, batch().parts, strict=True):
        assert not torch.equal(one.table, before.table)
        assert torch.equal(one.table, other.table)


@pytest.mark.parametrize("splits", [1, 4])
def test_attention_reads_them(splits: int) -> None:
    ragged = batch()
    used = int(ragged.count.sum())
    query = torch.randn(ragged.rows, HEADS, DIM, device=DEVICE)
    new = torch.randn(used, HEADS + 2 * KV_HEADS, DIM, device=DEVICE)
    turn = torch.ones(200, DIM, device=DEVICE)
    new = torch.cat([new, new[: ragged.rows - used]])
    for layer in range(LAYERS):
        rotate_and_store_reference(new, None, turn, turn, ragged, layer, KV_HEADS, 1e-6)
        want = tree_attention_reference(query, ragged, layer, KV_HEADS)[:used]
        got = tree_attention(query, ragged, layer, KV_HEADS, splits)[:used]
        assert ((got - want).abs().amax((0, 2)) / want.abs().amax((0, 2)) < 1e-5).all(), (
            "by head: values differ in size"
        )


def test_scales_move_with_their_rows() -> None:
    torch.manual_seed(3)
    table = small_table(9, 9)
    before = read_rows(table, range(PLANES), 9, PLANES, torch.float32)
    compact([Move(table, 3, [1, 4])])
    after = read_rows(table, range(PLANES), 9, PLANES, torch.float32)
    assert torch.equal(after[:, 3:5], before[:, [4, 7]])
