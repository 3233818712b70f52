"""The product with packed weights against torch's in fp64: every form, many sizes; a row's bits do not depend on the others.

The one form of packed weights: what its bytes mean, which weights can be joined, what is refused.

Keys and values in FP8: the kernels that write and read them against the references, and what the bytes mean.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.gpu.compaction import Move, compact
from kernels.gpu.low_bit import LowBit, joined, low_bit_reference, packed
from kernels.gpu.low_bit_product import low_bit_product
from kernels.gpu.ragged import Ragged, SequenceRows
from kernels.gpu.tree_attention import (
    read_rows,
    rotate_and_store,
    rotate_and_store_reference,
    rounded,
    scale_planes,
    tree_attention,
    tree_attention_reference,
    write_rows,
)
from tests.kernels.ragged_data import DEVICE, tree

KINDS = ("fp8", "int8", "int4")


def random_weight(kind: str, rows: int, columns: int, group: int, is_ordered: bool = False) -> LowBit:
    """Zero points reach both ends. group 0: whole rows. is_ordered: the groups' columns lie anywhere."""
    size = group or columns
    group_of = torch.arange(columns) // size
    groups = int(group_of[-1]) + 1
    scale = torch.rand(rows, groups).to(torch.float16) + 0.1
    group_of = group_of[torch.randperm(columns)] if is_ordered else group_of
    if kind == "fp8":
        return packed(torch.randn(rows, columns).to(torch.float8_e4m3fn), scale, None, group_of, 8)
    bits = int(kind[-1])
    numbers, zero = (torch.randint(1 << bits, shape, dtype=torch.uint8) for shape in ((rows, columns), (rows, groups)))
    zero[0, 0], zero[-1, -1] = 0, (1 << bits) - 1
    return packed(numbers, scale, zero, group_of, bits)


def sizes() -> Iterator[tuple[str, int, int, int, int]]:
    """Kind, group, columns, outputs, rows: all groups and numbers of rows, at ragged sizes."""
    yield from product(KINDS, (0, 32, 64, 128), (256,), (37,), (1, 16, 33, 64))
    yield from product(KINDS, (32, 0), (40, 200, 1), (1, 16, 70), (3, 17))
    yield from product(KINDS, (96,), (300,), (20,), (5,))


@pytest.mark.parametrize("kind", KINDS)
def test_all_sizes(kind: str) -> None:
    torch.manual_seed(0)
    for _, group, columns, outputs, rows in (each for each in sizes() if each[0] == kind):
        weight = random_weight(kind, outputs, columns, group).to(torch.device(DEVICE))
        x = torch.randn(rows, columns, device=DEVICE)
        close(low_bit_product(x, weight), low_bit_reference(x, weight), x, weight)


def close(got: Tensor, want: Tensor, x: Tensor, weight: LowBit) -> None:
    """Within the rounding of fp32, relative to the sum of absolute products."""
    bound = x.abs() @ weight.dequantised().abs().t() + 1e-3
    assert got.shape == want.shape
    assert ((got - want).abs() / bound).max() < 1e-6, (weight.bits, weight.group, weight.shape, len(x))


def test_columns_in_an_order_of_their_own() -> None:
    torch.manual_seed(1)
    weight, x = random_weight("int4", 20, 128, 32, is_ordered=True).to(torch.device(DEVICE)), torch.randn(3, 128)
    assert weight.order is not None
    x = x.to(DEVICE)
    close(low_bit_product(x, weight), low_bit_reference(x, weight), x, weight)


def test_wide_programs_and_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.gpu.low_bit_product._FEW_OUTPUTS", 10)
    torch.manual_seed(2)
    weight, x = random_weight("int4", 150, 96, 32).to(torch.device(DEVICE)), torch.randn(20, 96, device=DEVICE)
    bias = torch.randn(150, device=DEVICE)
    close(low_bit_product(x, weight, bias), low_bit_reference(x, weight) + bias, x, weight)
    close(low_bit_reference(x, weight, bias), low_bit_reference(x, weight) + bias, x, weight)


@pytest.fixture
def dots_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply as a GPU does, whose rows do not depend on each other. It asks numpy, and OpenBLAS on
    processors with AVX2 gives a row other last bits among other rows.
    """

    def dot(self: InterpreterBuilder, a: Any, b: Any, d: Any, *_: Any) -> TensorHandle:
        product = np.einsum("mk,kn->mn", a.data, b.data, dtype=d.data.dtype, optimize=False)
        return TensorHandle(product + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


@pytest.mark.usefixtures("dots_row_by_row")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("product_of", [low_bit_product, low_bit_reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_to_the_bit_among_any_number_of_rows(kind: str, product_of: type, dtype: torch.dtype) -> None:
    """The order of summation depends on the weight alone: without this, texts of methods differ at near-ties."""
    torch.manual_seed(3)
    weight = random_weight(kind, 37, 200, 0 if kind == "fp8" else 64).to(torch.device(DEVICE))
    x = torch.randn(64, 200, device=DEVICE).to(dtype)
    whole = product_of(x, weight)
    for start, end in ((0, 1), (5, 6), (3, 19), (15, 17), (10, 43), (0, 63)):
        assert torch.equal(product_of(x[start:end].contiguous(), weight), whole[start:end])


def test_every_fp8_number() -> None:
    """Among them the numbers below the least normal one; NaN has no place in a weight."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = numbers[numbers.float().isfinite()][:, None]
    weight = packed(numbers, torch.ones(len(numbers), 1), None, torch.zeros(1, dtype=torch.long), 8)
    got = low_bit_product(torch.ones(1, 1, device=DEVICE), weight.to(torch.device(DEVICE)))
    assert torch.equal(got[0].cpu(), numbers[:, 0].float())


def test_what_the_bytes_of_four_bits_mean() -> None:
    """Number by number; the last block of 32 columns is not full."""
    torch.manual_seed(0)
    numbers = torch.randint(16, (3, 40), dtype=torch.uint8)
    scale, zero = torch.rand(3, 2), torch.randint(16, (3, 2), dtype=torch.uint8)
    weight = packed(numbers, scale, zero, torch.arange(40) // 32, 4)
    assert weight.numbers.shape == (3, 32) and weight.shape == (3, 40)
    meant = weight.dequantised()
    for row in range(3):
        for column in range(40):
            byte = int(weight.numbers[row, column // 32 * 16 + column % 16])
            number = byte >> 4 if column % 32 >= 16 else byte & 15
            assert number == numbers[row, column]
            group = column // 32
            assert meant[row, column] == (number - int(zero[row, group])) * scale[row, group]
    assert weight.nbytes == 3 * 32 + 3 * 2 * 4 + 3 * 2


def test_weights_of_one_form_are_joined() -> None:
    torch.manual_seed(1)
    one, other = (random_weight("int4", rows, 64, 32) for rows in (5, 7))
    both = joined([one, other])
    assert both is not None
    assert torch.equal(both.dequantised(), torch.cat([one.dequantised(), other.dequantised()]))
    assert joined([one, random_weight("int4", 5, 64, 64)]) is None
    assert joined([one, random_weight("int8", 5, 64, 32)]) is None
    assert joined([one, random_weight("int4", 5, 64, 32, is_ordered=True)]) is None


def test_a_part_and_a_copy_mean_the_same() -> None:
    torch.manual_seed(2)
    weight = random_weight("int8", 9, 64, 32, is_ordered=True)
    assert torch.equal(weight.rows(2, 5).to(torch.device("cpu")).dequantised(), weight.dequantised()[2:5])


@pytest.mark.parametrize(
    ("group", "told"),
    [(torch.arange(48) // 24, "groups of 24 columns cannot be kept packed"), (torch.arange(48) % 5, "not of one size")],
)
def test_groups_that_the_kernel_cannot_read_are_refused(group: torch.Tensor, told: str) -> None:
    groups = int(group.max()) + 1
    zero = torch.zeros(2, groups, dtype=torch.uint8)
    with pytest.raises(ValueError, match=told):
        packed(torch.zeros(2, 48, dtype=torch.uint8), torch.ones(2, groups), zero, group, 4)


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
