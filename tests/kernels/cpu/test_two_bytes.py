"""Sixteen bits as two bytes: what goes apart comes together again, to the bit of what numpy computes in fp32."""

import numpy as np
import pytest
from numba import types

from kernels.cpu.emit import kernel
from kernels.cpu.processor import variant
from kernels.cpu.two_bytes import join_scores, join_sums, scale_weights, split_bytes

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
RANDOM = np.random.default_rng(0)


@kernel
def split(x, step, zero, count, high, low):  # type: ignore[no-untyped-def]
    split_bytes(types.intp(x), step, zero, types.intp(count), types.intp(high), types.intp(low))


@kernel
def scale(weights, pages, plane, count):  # type: ignore[no-untyped-def]
    return scale_weights(types.intp(weights), types.intp(pages), types.intp(plane), types.intp(count))


@kernel
def sums(high, low, factor, count, out):  # type: ignore[no-untyped-def]
    join_sums(types.intp(high), types.intp(low), factor, types.intp(count), types.intp(out))


@kernel
def scores(high, low, offsets, scales, factor, count, out):  # type: ignore[no-untyped-def]
    join_scores(
        types.intp(high),
        types.intp(low),
        types.intp(offsets),
        types.intp(scales),
        factor,
        types.intp(count),
        types.intp(out),
    )


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


def test_weights_are_scaled_and_those_that_would_not_count_are_none() -> None:
    weights, pages = RANDOM.uniform(0.0, 1.0, (3, 64)).astype(np.float32), RANDOM.uniform(0.0, 1.0, (3, 80))
    weights[0, 5:9] = weights[2, 60] = 2.0**-120
    kept = [page.astype(np.float32) for page in pages]  # the scales, behind sixteen other numbers
    want = np.where(weights > 1e-9, weights * np.stack(kept)[:, 16:], np.float32(0.0))
    places = np.array([page.ctypes.data for page in kept], np.int64)
    top = scale(weights.ctypes.data, places.ctypes.data, 64, 3)
    np.testing.assert_array_equal(weights, want)
    assert top == want.max()


def test_sums_of_both_bytes_come_together() -> None:
    high, low, offsets = RANDOM.integers(-(10**6), 10**6, (3, 64)).astype(np.int32)
    scales, out, factor = RANDOM.uniform(0.1, 1.0, 64).astype(np.float32), np.zeros(64, np.float32), np.float32(0.3)
    sums(high.ctypes.data, low.ctypes.data, factor, 64, out.ctypes.data)
    whole = high.astype(np.float32) * np.float32(256) + low.astype(np.float32)
    np.testing.assert_array_equal(out, whole * factor)
    scores(
        high.ctypes.data,
        low.ctypes.data,
        offsets.ctypes.data,
        scales.ctypes.data,
        factor,
        64,
        out.ctypes.data,
    )
    whole = (high - offsets).astype(np.float32) * np.float32(256) + low.astype(np.float32)
    np.testing.assert_array_equal(out, whole * (factor * scales))
