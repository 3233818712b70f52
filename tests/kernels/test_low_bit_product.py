"""The product with packed weights against torch's in fp64: every form, many sizes; a row's bits do not depend on the others."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.gpu.low_bit import LowBit, low_bit_reference, packed
from kernels.gpu.low_bit_product import low_bit_product
from tests.kernels.ragged_data import DEVICE

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
    processors with AVX2 gives a row other last bits beside other rows.
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
