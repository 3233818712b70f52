"""What happens to 64 columns in registers: against numpy, to the bit."""

import numpy as np
import numpy.typing as npt
import pytest
from numba import types

from kernels.cpu import blocks, quantize, swiglu
from kernels.cpu.emit import kernel
from kernels.cpu.processor import variant

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
Floats = npt.NDArray[np.float32]


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@kernel
def measure(x, top, squares):  # type: ignore[no-untyped-def]
    blocks.measured(types.intp(x), types.intp(top), types.intp(squares))


@kernel
def add(x, more, top, squares):  # type: ignore[no-untyped-def]
    blocks.added(types.intp(x), types.intp(more), types.intp(top), types.intp(squares))


@kernel
def gate(gates, ups, out, top):  # type: ignore[no-untyped-def]
    blocks.gated(types.intp(gates), types.intp(ups), types.intp(out), types.intp(top))


@kernel
def to_bytes(x, step, out):  # type: ignore[no-untyped-def]
    blocks.quantized(types.intp(x), step, types.intp(out))


@kernel
def to_key(x, step, out):  # type: ignore[no-untyped-def]
    return blocks.key_bytes(types.intp(x), step, types.intp(out))


@kernel
def to_value(x, step, line, shift):  # type: ignore[no-untyped-def]
    blocks.value_bytes(types.intp(x), step, types.intp(line), types.intp(shift))


@kernel
def over(x, stride, count, out, is_sum):  # type: ignore[no-untyped-def]
    if is_sum:
        blocks.sums_of_blocks(types.intp(x), types.intp(stride), types.intp(count), types.intp(out))
    else:
        blocks.largest_of_blocks(types.intp(x), types.intp(stride), types.intp(count), types.intp(out))


def test_a_block_is_measured_as_it_is_and_after_more_is_added() -> None:
    x, more, found = random(64), random(64, seed=1), np.zeros(2, np.float32)
    measure(x.ctypes.data, found.ctypes.data, found.ctypes.data + 4)
    assert found.tolist() == [np.abs(x).max(), quantize._squares(x)]
    want = x + more
    add(x.ctypes.data, more.ctypes.data, found.ctypes.data, found.ctypes.data + 4)
    np.testing.assert_array_equal(x, want)
    assert found.tolist() == [np.abs(want).max(), quantize._squares(want)]


def test_gates_are_transformed_and_measured() -> None:
    gates, ups, out = 4 * random(64), random(64, seed=1), np.zeros(65, np.float32)
    gate(gates.ctypes.data, ups.ctypes.data, out.ctypes.data, out.ctypes.data + 4 * 64)
    want = np.zeros(64, np.float32)
    swiglu.swiglu(gates.ctypes.data, ups.ctypes.data, 64, want.ctypes.data)
    quantize.hadamard(want.ctypes.data, 64)
    np.testing.assert_array_equal(out[:64], want)
    assert out[64] == np.abs(want).max()


def test_bytes_of_a_block_are_those_of_its_row() -> None:
    x, found = random(1, 64), np.zeros(64, np.uint8)
    want, _scale = quantize.quantize_reference(x)
    top = np.abs(x).max()
    to_bytes(x.ctypes.data, np.float32(127) / top, found.ctypes.data)
    np.testing.assert_array_equal(found, want[0])


def test_bytes_of_keys_are_signed_and_summed() -> None:
    x, found = random(1, 64), np.zeros(64, np.int8)
    want = quantize.quantize_reference(x)[0][0].astype(int) - 128
    total = to_key(x.ctypes.data, np.float32(127) / np.abs(x).max(), found.ctypes.data)
    np.testing.assert_array_equal(found, want)
    assert total == want.sum()


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_bytes_of_values_leave_those_beside_them(place: int) -> None:
    x, line = random(1, 16), np.random.default_rng(1).integers(-128, 128, (16, 4), np.int8)
    want = line.copy()
    want[:, place] = quantize.quantize_reference(x)[0][0].astype(int) - 128
    to_value(x.ctypes.data, np.float32(127) / np.abs(x).max(), line.ctypes.data, 8 * place)
    np.testing.assert_array_equal(line, want)


def test_blocks_are_joined_in_their_order() -> None:
    x, out = np.abs(random(9, 32)), np.zeros(16, np.float32)
    over(x.ctypes.data + 64, x.strides[0], 9, out.ctypes.data, False)
    np.testing.assert_array_equal(out, x[:, 16:].max(0))
    over(x.ctypes.data + 64, x.strides[0], 9, out.ctypes.data, True)
    want = np.zeros(16, np.float32)
    for block in x:
        want += block[16:]
    np.testing.assert_array_equal(out, want)
