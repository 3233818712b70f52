"""Attention of trees on a processor: near to numpy in fp64, and a row is the same to the bit wherever it stands."""

import numpy as np
import numpy.typing as npt
import pytest

from kernels.cpu.job import PAGE
from kernels.cpu.processor import variant
from kernels.cpu.tree_attention import attend, attend_reference

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
Floats = npt.NDArray[np.float32]
TREE = (-1, 0, 0, 1, 2, 2, 5, -1, 7)  # parents


def seen_in(parents: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    seen = np.eye(len(parents), dtype=bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


class Case:
    """Random keys and values of one head of keys, in pages, with what is unwritten no number."""

    def __init__(self, positions: int, dim: int = 64, heads: int = 3, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.dim, self.heads = dim, heads
        self.keys, self.values = random.standard_normal((2, positions, dim), dtype=np.float32)
        self.queries = 0.3 * random.standard_normal((positions, heads, dim), dtype=np.float32)

    def pages(self, places: list[int]) -> tuple[Floats, npt.NDArray[np.int64]]:
        """The positions `places`, one behind the other."""
        count = -(-len(places) // PAGE)
        pages = np.full((count, 2, PAGE * self.dim), np.nan, np.float32)
        for at, place in enumerate(places):
            page, column = divmod(at, PAGE)
            pages[page, 0].reshape(self.dim, PAGE)[:, column] = self.keys[place]
            pages[page, 1].reshape(PAGE, self.dim)[column] = self.values[place]
        return pages, np.array([page.ctypes.data for page in pages], np.int64)

    def run(
        self,
        places: list[int],
        rows: int,
        seen: npt.NDArray[np.bool_] | None,
        first: int = 0,
        heads: slice = slice(None),
    ) -> Floats:
        """Of the last `rows` places from the `first` on; seen None: a chain."""
        before, (kept, addresses) = len(places) - rows, self.pages(places)
        counts = np.arange(1, rows + 1, dtype=np.int32) if seen is None else seen.sum(1, dtype=np.int32)
        own = np.zeros((rows, rows), np.int32)
        for row in range(rows if seen is not None else 0):
            own[row, : counts[row]] = np.flatnonzero(seen[row])  # type: ignore[index]
        queries = np.ascontiguousarray(self.queries[places[before:]][first:, heads])
        mixed, outputs = np.zeros_like(queries), queries.shape[0] * queries.shape[1]
        scores = np.full((outputs, len(kept) * PAGE + 16), np.nan, np.float32)
        sums = np.zeros(outputs + rows, np.float32)
        attend(
            queries.ctypes.data,
            queries.shape[1],
            self.dim,
            addresses.ctypes.data,
            0,
            before,
            first,
            rows,
            0 if seen is None else own.ctypes.data,
            own.strides[0],
            counts.ctypes.data,
            scores.ctypes.data,
            scores.strides[0],
            sums.ctypes.data,
            mixed.ctypes.data,
        )
        return mixed


@pytest.mark.parametrize("before", [0, 1, 15, 63, 64, 65, 150])
@pytest.mark.parametrize(("dim", "heads"), [(64, 3), (128, 1), (64, 2)])
def test_attention_is_near_the_reference(before: int, dim: int, heads: int) -> None:
    case, seen = Case(before + 9, dim, heads), seen_in(TREE)
    places = list(range(before + 9))
    for mask in (seen, np.tril(np.ones((9, 9), bool))):
        want = attend_reference(case.queries[before:], case.keys, case.values, before, mask)
        np.testing.assert_allclose(case.run(places, 9, mask), want, atol=2e-6)


@pytest.mark.parametrize("before", [0, 7, 60, 64, 130])
def test_a_row_is_the_same_to_the_bit_wherever_it_stands(before: int) -> None:
    case, seen = Case(before + 9), seen_in(TREE)
    prefix, tree = list(range(before)), case.run(list(range(before + 9)), 9, seen)
    for row in range(9):
        path = [before + int(other) for other in np.flatnonzero(seen[row])]
        chain = case.run([*prefix, *path], len(path), None)
        np.testing.assert_array_equal(chain[-1], tree[row])
        cached = case.run([*prefix, *path], 1, None)
        np.testing.assert_array_equal(cached[-1], tree[row])
        behind = case.run([*prefix, *path], len(path), None, first=len(path) - 1, heads=slice(1, 2))
        np.testing.assert_array_equal(behind[-1], tree[row, 1:2])
