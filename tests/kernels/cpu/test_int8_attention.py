"""Attention over keys and values in eight bits: near to numpy behind the same rounding, near to fp32, and a row is the same to
the bit wherever it stands.
"""

import numpy as np
import pytest

from kernels.cpu.int8_attention import attend_int8, attend_int8_reference, transform, write_key, write_value
from kernels.cpu.job import LINE, PAGE, aligned, attention_room, plane_bytes
from kernels.cpu.processor import variant
from kernels.cpu.tree_attention import attend_reference
from tests.kernels.cpu.attention_cases import TREE, Case, Floats, Pages, check_rows_are_the_same_everywhere, seen_in

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")


class Int8Case(Case):
    """The same in eight bits. What is unwritten is anything, but for its scales."""

    def pages(self, places: list[int]) -> Pages:
        count, random = -(-len(places) // PAGE), np.random.default_rng(1)
        pages = random.integers(0, 256, (count, plane_bytes(self.dim)), np.uint8)
        pages[:, 2 * PAGE * self.dim :] = 0
        room = np.zeros(self.dim, np.uint8)
        for at, place in enumerate(places):
            plane, key, value = pages[at // PAGE].ctypes.data, self.keys[place].copy(), self.values[place]
            write_key(key.ctypes.data, self.dim, room.ctypes.data, plane, at % PAGE)
            write_value(value.ctypes.data, self.dim, room.ctypes.data, plane, at % PAGE)
        return pages

    def attend(self, *arguments: int) -> None:
        dim, before, stop = (arguments[place] for place in (2, 5, 7))
        room = aligned(LINE + attention_room(dim, before + stop), np.uint8)
        kept = room[-LINE:].copy()
        attend_int8(*arguments, room.ctypes.data)
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


def test_the_transform_keeps_lengths_and_products() -> None:
    x = np.random.default_rng(3).standard_normal((2, 128), dtype=np.float32)
    turned = x.copy()
    for row in turned:
        transform(row.ctypes.data, 128)
    np.testing.assert_allclose(turned @ turned.T / 64, x @ x.T, rtol=1e-5, atol=1e-4)
    assert np.abs(turned - x).max() > 1.0


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
