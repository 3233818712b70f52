"""Attention over keys and values in eight bits: near to numpy behind the same rounding, near to fp32, and a row is the same to
the bit wherever it stands.

Attention of trees on a processor: near to numpy in fp64, and a row is the same to the bit wherever it stands.

Sixteen bits as two bytes: what goes apart comes together again, to the bit of what numpy computes in fp32.
"""

import ctypes
from typing import Any

import numpy as np
import pytest
from numba import types

from kernels.cpu.blocks import turned
from kernels.cpu.emit import kernel
from kernels.cpu.int8_attention import attend_int8, attend_int8_reference, attend_of, write_key, write_value
from kernels.cpu.job import LINE, PAGE, aligned, attention_room, lanes_of, plane_bytes
from kernels.cpu.processor import IS_ARM, variant
from kernels.cpu.tree_attention import attend_reference, weigh
from kernels.cpu.wide_products import join_scores, join_sums, split_bytes, split_pages
from tests.kernels.cpu.attention.attention_cases import (
    TREE,
    Case,
    Floats,
    Pages,
    check_rows_are_the_same_everywhere,
    seen_in,
)

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")


class Int8Case(Case):
    """The same in eight bits. What is unwritten is anything, but for its scales."""

    attention: Any = staticmethod(attend_int8)

    def pages(self, places: list[int]) -> Pages:
        count, random = -(-len(places) // PAGE), np.random.default_rng(1)
        pages = random.integers(0, 256, (count, plane_bytes(self.dim)), np.uint8)
        pages[:, 2 * PAGE * self.dim :] = 0
        room = np.zeros(self.dim, np.uint8)
        for at, place in enumerate(places):
            plane, key, value = pages[at // PAGE].ctypes.data, self.keys[place].copy(), self.values[place]
            write_key(key.ctypes.data, self.dim, room.ctypes.data, plane, at % PAGE)
            write_value(value.ctypes.data, self.dim, plane, at % PAGE)
        return pages

    def attend(self, *arguments: int) -> None:
        heads, dim, before, first, stop, mixed = (arguments[place] for place in (1, 2, 5, 6, 7, 14))
        room = aligned(LINE + attention_room(dim, before + stop), np.uint8)
        kept = room[-LINE:].copy()
        blocks, rows = heads * dim // 64, stop - first
        peaks = np.full((blocks + 1, lanes_of(rows)), np.nan, np.float32)
        self.attention(*arguments, room.ctypes.data, 4 * heads * dim, peaks.ctypes.data, peaks.strides[0])
        found = np.ctypeslib.as_array(ctypes.cast(mixed, ctypes.POINTER(ctypes.c_float)), (rows, blocks, 64))
        np.testing.assert_array_equal(peaks[:blocks, :rows], np.abs(found).max(2).T)
        assert np.isnan(peaks[blocks]).all()
        assert np.isnan(peaks[:, rows:]).all()
        np.testing.assert_array_equal(room[-LINE:], kept, "beyond its room nothing is written")

    def run(self, *arguments: object, **options: object) -> Floats:
        self.queries, queries = self.queries / 64, self.queries
        try:
            return super().run(*arguments, **options)  # type: ignore[arg-type]
        finally:
            self.queries = queries


@pytest.mark.parametrize("before", [0, 1, 15, 63, 64, 65, 150])
@pytest.mark.parametrize(("dim", "heads"), [(64, 3), (128, 1), (64, 2)])
def test_attention_is_near_the_reference(before: int, dim: int, heads: int) -> None:
    case, seen = Int8Case(before + 9, dim, heads), seen_in(TREE)
    places = list(range(before + 9))
    for mask in (seen, np.tril(np.ones((9, 9), bool))):
        found = case.run(places, 9, mask)
        rounded = attend_int8_reference(case.queries[before:], case.keys, case.values, before, mask)
        np.testing.assert_allclose(found, rounded, atol=2e-4)
        exact = attend_reference(case.queries[before:], case.keys, case.values, before, mask)
        assert np.sqrt(np.square(found - exact).mean()) < 0.02 * exact.std()


def test_numbers_that_stick_out_do_not_drown_the_others() -> None:
    """Some models' keys have channels that are a hundred times as large as the rest."""
    case, mask = Int8Case(100, heads=1), np.tril(np.ones((9, 9), bool))
    case.keys[:, 7] += 100.0  # of all positions alike, as a bias is: that changes no weight
    exact = attend_reference(case.queries[91:], case.keys, case.values, 91, mask)
    error = case.run(list(range(100)), 9, mask) - exact
    assert np.sqrt(np.square(error).mean()) < 0.1 * exact.std()


@kernel
def turn(x):  # type: ignore[no-untyped-def]
    return turned(types.intp(x))


def test_the_transform_keeps_lengths_and_products() -> None:
    x = np.random.default_rng(3).standard_normal((2, 64), dtype=np.float32)
    found = x.copy()
    tops = [turn(row.ctypes.data) for row in found]
    np.testing.assert_array_equal(np.array(tops, np.float32), np.abs(found).max(1))
    np.testing.assert_allclose(found @ found.T / 64, x @ x.T, rtol=1e-5, atol=1e-4)
    assert np.abs(found - x).max() > 1.0


def test_many_small_weights_add_up() -> None:
    """A position that nearly all weight goes to, and whose value is small, as first tokens of texts have it."""
    case, mask = Int8Case(500, heads=1), np.ones((1, 1), bool)
    case.queries[:], case.keys[:] = 1.0, 0.0
    case.keys[0] = 0.125
    case.values[0] *= 1e-3
    exact = attend_reference(case.queries[499:], case.keys, case.values, 499, mask)
    assert np.exp2(8.0) / (np.exp2(8.0) + 499) > 0.3, "it has a third of the weight, each other one a 750th"
    error = case.run(list(range(500)), 1, None) - exact
    assert np.sqrt(np.square(error).mean()) < 0.02 * exact.std()


@pytest.mark.parametrize("before", [0, 7, 60, 64, 130])
def test_a_row_is_the_same_to_the_bit_wherever_it_stands(before: int) -> None:
    check_rows_are_the_same_everywhere(Int8Case(before + 9), before)


@pytest.mark.skipif(IS_ARM, reason="no processor of ARM's has these products of words")
@pytest.mark.parametrize(("before", "dim", "heads"), [(0, 64, 3), (63, 64, 2), (150, 128, 1), (700, 64, 3)])
def test_words_give_what_two_bytes_give(before: int, dim: int, heads: int) -> None:
    case, places = Int8Case(before + 9, dim, heads), list(range(before + 9))
    case.values[::3] = 5.0  # many weights and values of one sign, whose sums would not fit 32 bits
    case.keys[: before + 5] *= np.float32(1e-3)
    found = []
    for kind in ("avx2", "generic"):
        case.attention = attend_of(kind)
        found += [case.run(places, 9, seen_in(TREE)), case.run(places, 9, None)]
    np.testing.assert_array_equal(found[:2], found[2:])


@kernel
def weights_of(scores, factor, before, total, used, pages, plane, room):  # type: ignore[no-untyped-def]
    return weigh(scores, factor, before, total, used, 0, pages, plane, room)


@pytest.mark.parametrize(("before", "total"), [(0, 1), (5, 9), (64, 70), (100, 128), (127, 128)])
def test_weights_are_powers_of_two_with_the_scales_of_values(before: int, total: int) -> None:
    random = np.random.default_rng(4)
    scores, scales = random.normal(0, 1e4, 128).astype(np.float32), random.uniform(0.1, 1.0, (2, 80)).astype(np.float32)
    factor, pages = np.float32(1e-3), np.array([page.ctypes.data for page in scales], np.int64)
    room, powers = np.zeros(16, np.float32), np.exp2((scores[:total] - scores[:total].max()).astype(np.float64) * 1e-3)
    want = np.zeros(128)
    want[:total] = np.maximum(powers, 2.0**-60) * scales[:, 16:].reshape(-1)[:total]
    weight, top = weights_of(scores.ctypes.data, factor, before, total, 2, pages.ctypes.data, 64, room.ctypes.data)
    np.testing.assert_allclose(scores, want, rtol=1e-5)
    assert weight == pytest.approx(powers.sum(), rel=1e-5)
    assert top == scores.max()


@pytest.mark.parametrize("before", [0, 1, 15, 63, 64, 65, 150])
@pytest.mark.parametrize(("dim", "heads"), [(64, 3), (128, 1), (64, 2)])
def test_attention_is_near_the_reference_tree_attention(before: int, dim: int, heads: int) -> None:
    case, seen = Case(before + 9, dim, heads), seen_in(TREE)
    places = list(range(before + 9))
    for mask in (seen, np.tril(np.ones((9, 9), bool))):
        want = attend_reference(case.queries[before:], case.keys, case.values, before, mask)
        np.testing.assert_allclose(case.run(places, 9, mask), want, atol=2e-6)


@pytest.mark.parametrize("before", [0, 7, 60, 64, 130])
def test_a_row_is_the_same_to_the_bit_wherever_it_stands_tree_attention(before: int) -> None:
    check_rows_are_the_same_everywhere(Case(before + 9), before)


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
