"""Sixteen bits as two bytes: what goes apart comes together again, to the bit of what numpy computes in fp32."""

import numpy as np
import pytest
from numba import types

from kernels.cpu.emit import kernel
from kernels.cpu.processor import variant
from kernels.cpu.wide_products import join_scores, join_sums, split_bytes, split_pages

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
RANDOM = np.random.default_rng(0)


@kernel
def split(x, step, zero, count, high, low):  # type: ignore[no-untyped-def]
    split_bytes(types.intp(x), step, zero, types.intp(count), types.intp(high), types.intp(low))


@kernel
def split_apart(x, step, count, high, low):  # type: ignore[no-untyped-def]
    split_pages(types.intp(x), step, types.intp(count), types.intp(high), types.intp(low))


@kernel
def sums(high, low, factor, out):  # type: ignore[no-untyped-def]
    return join_sums(types.intp(high), types.intp(low), factor, types.intp(out))


@kernel
def scores(high, low, outputs, offsets, scales, out, stride):  # type: ignore[no-untyped-def]
    rows, numbers = (types.intp(high), types.intp(low)), (types.intp(offsets), types.intp(scales))
    join_scores(rows[0], rows[1], types.intp(outputs), numbers[0], numbers[1], types.intp(out), types.intp(stride))


@pytest.mark.parametrize(("least", "zero"), [(0.0, 0.0), (-1.0, 32768.0)])
def test_both_bytes_are_those_of_the_rounded_number(least: float, zero: float) -> None:
    x = RANDOM.uniform(least, 1.0, 64).astype(np.float32)
    x[:3] = least, 1.0, 0.0
    step = np.float32(127 * 256 if zero else 65535)
    high, low = np.zeros((2, 64), np.uint8)
    split(x.ctypes.data, step, np.float32(zero), 64, high.ctypes.data, low.ctypes.data)
    whole = high.astype(np.int64) * 256 + low
    np.testing.assert_allclose(whole, x.astype(np.float64) * float(step) + zero, atol=0.51)
    assert (whole[:3] == [float(step) * least + zero, float(step) + zero, zero]).all()


def test_bytes_of_pages_lie_so_that_four_vectors_become_one() -> None:
    x = RANDOM.uniform(0.0, 1.0, (3, 64)).astype(np.float32)
    x[0, :2] = 0.0, 1.0
    high, low = np.zeros((2, 3, 64), np.uint8)
    split_apart(x.ctypes.data, np.float32(65535), 3, high.ctypes.data, low.ctypes.data)
    whole = (high.astype(np.int64) * 256 + low).reshape(3, 16, 4).transpose(0, 2, 1).reshape(3, 64)
    np.testing.assert_allclose(whole, x.astype(np.float64) * 65535, atol=0.51)
    assert whole[0, :2].tolist() == [0, 65535]


def test_sums_of_both_bytes_come_together() -> None:
    high, low = RANDOM.integers(-(10**6), 10**6, (2, 64)).astype(np.int32)
    out, factor = np.zeros(64, np.float32), np.float32(0.3)
    top = sums(high.ctypes.data, low.ctypes.data, factor, out.ctypes.data)
    whole = high.astype(np.int64) * 256 + low
    np.testing.assert_array_equal(out, whole.astype(np.float32) * factor)
    assert top == np.abs(out).max()


def test_scores_of_a_page_come_together() -> None:
    high, low = RANDOM.integers(0, 2 * 10**6, (2, 3, 64)).astype(np.int32)
    offsets, scales = RANDOM.integers(0, 10**6, 64).astype(np.int32), RANDOM.uniform(0.1, 1.0, 64).astype(np.float32)
    out = np.full((3, 80), np.nan, np.float32)
    places = [array.ctypes.data for array in (high, low, offsets, scales, out)]
    scores(*places[:2], 3, *places[2:], out.strides[0])
    whole = (high.astype(np.int64) - offsets) * 256 + low
    np.testing.assert_array_equal(out[:, :64], whole.astype(np.float32) * scales)
    assert np.isnan(out[:, 64:]).all()
