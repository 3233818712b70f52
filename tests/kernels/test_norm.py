"""The fused sum and norm against torch's operators.

The rows of mask tokens before a layer against torch's operators, and all other rows as they were.

The fused norm, rotation and store against torch's operators.

Rows moved in place equal rows moved through a copy.

The fused correction loop against one that keeps the corrected logits, and against the head itself.

The tree-attention kernel against torch's own attention with a dense mask.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from kernels.gpu.compaction import Move, compact
from kernels.gpu.domino import Correction, correct_chain, correct_chain_reference
from kernels.gpu.norm import adapt_and_norm, adapt_and_norm_reference, add_rms_norm, add_rms_norm_reference
from kernels.gpu.ragged import Ragged
from kernels.gpu.tree_attention import (
    rotate_and_store,
    rotate_and_store_reference,
    tree_attention,
    tree_attention_reference,
)
from tests.kernels.ragged_data import DEVICE, mixed_batch, part, tree


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
def test_sum_and_norm(dtype: torch.dtype, rtol: float) -> None:
    """In bf16 the interpreter cuts off where others round."""
    torch.manual_seed(0)
    x, delta = (torch.randn(3, 40, device=DEVICE).to(dtype) for _ in range(2))
    weight = torch.randn(40, device=DEVICE).to(dtype)
    got, want = (each(x, delta, weight, 1e-2) for each in (add_rms_norm, add_rms_norm_reference))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=0.02 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("rank", [3, 8, 21])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_masked_rows_are_adapted_and_others_stay(dtype: torch.dtype, rtol: float, rank: int) -> None:
    torch.manual_seed(0)
    x, normed = (torch.randn(5, 40, device=DEVICE).to(dtype) for _ in range(2))
    down, up = (torch.randn(rank, 40, device=DEVICE).to(dtype) * 0.2 for _ in range(2))
    weight = torch.randn(40, device=DEVICE).to(dtype)
    masked = torch.tensor([False, True, False, True, True], device=DEVICE)
    given = x, normed, masked, down, up, weight, 1e-2
    got, want = adapt_and_norm(*given), adapt_and_norm_reference(*given)
    for one, other, before in zip(got, want, (x, normed), strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=0.03 if dtype == torch.bfloat16 else 1e-5)
        assert torch.equal(one[~masked], before[~masked])
        assert not torch.allclose(one[masked], before[masked], atol=0.1)


LAYERS, LAYER, HEADS, KV_HEADS, DIM = 2, 1, 3, 1, 10


@pytest.mark.parametrize("normed", [False, True])
def test_queries_and_what_the_tables_hold(normed: bool) -> None:
    """Nothing but the rows' own slots changes, in the one layer; rows that belong to no sequence write nowhere."""
    torch.manual_seed(0)
    ragged = mixed_batch(2 * LAYERS * KV_HEADS, DIM)
    used = int(ragged.count.sum())
    qkv = torch.randn(ragged.rows, HEADS + 2 * KV_HEADS, DIM, device=DEVICE)
    norm = torch.randn(HEADS + KV_HEADS, DIM, device=DEVICE) if normed else None
    cos, sin = torch.randn(2, 160, DIM, device=DEVICE)
    before = [part.table.clone() for part in ragged.parts]
    want = rotate_and_store_reference(qkv, norm, cos, sin, ragged, LAYER, KV_HEADS, 1e-2)
    stored = [part.table.clone() for part in ragged.parts]
    for one, table in zip(ragged.parts, before, strict=True):
        one.table.copy_(table)
    got = rotate_and_store(qkv, norm, cos, sin, ragged, LAYER, KV_HEADS, 1e-2)
    torch.testing.assert_close(got[:used], want[:used], rtol=1e-5, atol=1e-5)
    for one, table, old in zip(ragged.parts, stored, before, strict=True):
        torch.testing.assert_close(one.table, table, rtol=1e-5, atol=1e-5)
        assert not torch.equal(one.table, old)


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2, 3, 7], [1, 2, 3, 4], [5], []])
@pytest.mark.parametrize("shape", [(3,), (2, 1100)])
def test_rows_of_every_plane(rows: list[int], shape: tuple[int, ...]) -> None:
    """Rows that overlap their places are read before they are written over; others stay as they were."""
    table = torch.randn(2, 14, *shape, device=DEVICE)
    want = table.clone()
    want[:, 4 : 4 + len(rows)] = table[:, [4 + row for row in rows]]
    compact([Move(table, 4, rows)])
    assert torch.equal(table, want)


def test_a_table_without_planes() -> None:
    """The hidden states' table where nothing is tapped has no row whose size could be asked for."""
    compact([Move(torch.empty(0, 14, 3, device=DEVICE), 4, [1, 2])])


def test_tables_of_several_sequences_and_shapes() -> None:
    """Capacities differ, and so do the moved rows, the planes, the widths, and whether a table has planes at all."""
    torch.manual_seed(0)
    shapes, moved = ((2, 14, 3), (2, 40, 3), (5, 14, 7), (0, 14, 7)), ([1, 4], [0, 2, 3, 7], [3], [2])
    tables = [torch.randn(shape, device=DEVICE) for shape in shapes]
    want = [table.clone() for table in tables]
    for table, before, start, rows in zip(want, tables, range(4), moved, strict=True):
        table[:, start : start + len(rows)] = before[:, [start + row for row in rows]]
    compact([Move(*each) for each in zip(tables, range(4), moved, strict=True)])
    assert all(torch.equal(*pair) for pair in zip(tables, want, strict=True))


VOCAB, SIZE, RANK, GRU, HIDDEN, DEPTH = 170, 150, 5, 132, 7, 6


@torch.no_grad()
def test_the_chain_of_the_head_in_its_own_words() -> None:
    """Each guess depends on all before it; the first goes without correction. Tokens may be drafted in any order."""
    torch.manual_seed(0)
    gru = nn.GRU(HIDDEN, GRU, bias=False).to(DEVICE)
    states, embedding, outputs = (
        torch.randn(n, m, device=DEVICE) for n, m in ((DEPTH, HIDDEN), (VOCAB, HIDDEN), (VOCAB, RANK))
    )
    from_state, from_encoder = torch.randn(RANK, HIDDEN, device=DEVICE), torch.randn(RANK, GRU, device=DEVICE)
    ids = torch.randperm(VOCAB, device=DEVICE)[:SIZE]
    base, state = torch.randn(DEPTH, SIZE, device=DEVICE), torch.randn(GRU, device=DEVICE)
    inputs, recurrent = gru.all_weights[0]
    correction = Correction(embedding @ inputs.T, torch.cat([from_encoder, recurrent]), outputs)

    want, prefix = [], state[None]
    for place in range(DEPTH):
        factor = nn.functional.silu(from_state @ states[place] + from_encoder @ prefix[0])
        want.append(int(ids[(base[place] + (outputs[ids] @ factor if place else 0)).argmax()]))
        prefix = torch.gru_cell(embedding[want[-1:]], prefix, inputs, recurrent)

    places = states @ from_state.T
    assert correct_chain_reference(base, ids, places, state, correction).tolist() == want
    assert correct_chain(base, ids, places, state, correction).tolist() == want
    assert ids[base.argmax(1)].tolist() != want


LAYERS_TREE_ATTENTION, LAYER_TREE_ATTENTION, KV_HEADS_TREE_ATTENTION = 2, 1, 2


@pytest.mark.parametrize(("dim", "group", "splits"), [(16, 3, 1), (8, 1, 4)])
def test_sequences_of_several_lengths(dim: int, group: int, splits: int) -> None:
    """A wrong length, parent, plane or split shows; so do rows that see what follows them, and splits without keys."""
    torch.manual_seed(0)
    ragged = mixed_batch(2 * LAYERS_TREE_ATTENTION * KV_HEADS_TREE_ATTENTION, dim)
    used = int(ragged.count.sum())
    query = torch.randn(ragged.rows, KV_HEADS_TREE_ATTENTION * group, dim, device=DEVICE)
    want = tree_attention_reference(query, ragged, LAYER_TREE_ATTENTION, KV_HEADS_TREE_ATTENTION)[:used]
    torch.testing.assert_close(
        tree_attention(query, ragged, LAYER_TREE_ATTENTION, KV_HEADS_TREE_ATTENTION, splits)[:used],
        want,
        rtol=0,
        atol=5e-6,
    )


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


@pytest.mark.parametrize("splits", [1, 4])
def test_rows_of_a_block_head_see_each_other(splits: int) -> None:
    """Also those that another program computes, which the rows of a chain or tree never see."""
    torch.manual_seed(4)
    ragged = Ragged(2, 18, 12, DEVICE, trees=False)
    ragged.fill([replace(part(130, 12, 2, 16), mutual=True), part(9, 3, 2, 16)])
    query = torch.randn(18, 8, 16, device=DEVICE)
    want = tree_attention_reference(query, ragged, 0, 1)[:15]
    torch.testing.assert_close(tree_attention(query, ragged, 0, 1, splits)[:15], want, rtol=0, atol=5e-6)


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
