"""Trees of rows for the attention kernels, behind random keys and values."""

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import LANES
from kernels.cpu.job import OUTPUTS, PAGE
from kernels.cpu.tree_attention import attend

Floats = npt.NDArray[np.float32]
Pages = npt.NDArray[np.generic]
TREE = (-1, 0, 0, 1, 2, 2, 5, -1, 7)  # parents


def seen_in(parents: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    seen = np.eye(len(parents), dtype=bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


class Case:
    """Random keys and values of one head of keys, in pages of fp32, with what is unwritten no number."""

    def __init__(self, positions: int, dim: int = 64, heads: int = 3, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.dim, self.heads = dim, heads
        self.keys, self.values = random.standard_normal((2, positions, dim), dtype=np.float32)
        self.queries = 0.3 * random.standard_normal((positions, heads, dim), dtype=np.float32)

    def pages(self, places: list[int]) -> Pages:
        """The positions `places`, one behind the other, in a row for each page."""
        count = -(-len(places) // PAGE)
        pages = np.full((count, 2, PAGE * self.dim), np.nan, np.float32)
        for at, place in enumerate(places):
            page, column = divmod(at, PAGE)
            pages[page, 0].reshape(self.dim, PAGE)[:, column] = self.keys[place]
            pages[page, 1].reshape(PAGE, self.dim)[column] = self.values[place]
        return pages

    def attend(self, *arguments: int) -> None:
        attend(*arguments)

    def run(
        self,
        places: list[int],
        rows: int,
        seen: npt.NDArray[np.bool_] | None,
        first: int = 0,
        heads: slice = slice(None),
    ) -> Floats:
        """Of the last `rows` places from the `first` on; seen None: a chain."""
        before, pages = len(places) - rows, self.pages(places)
        addresses = np.array([page.ctypes.data for page in pages], np.int64)
        counts = np.arange(1, rows + 1, dtype=np.int32) if seen is None else seen.sum(1, dtype=np.int32)
        own = np.zeros((rows, rows), np.int32)
        for row in range(rows if seen is not None else 0):
            own[row, : counts[row]] = np.flatnonzero(seen[row])  # type: ignore[index]
        queries = np.ascontiguousarray(self.queries[places[before:]][first:, heads])
        mixed, outputs = np.zeros_like(queries), queries.shape[0] * queries.shape[1]
        room = max(outputs, OUTPUTS)
        scores = np.full((room, len(pages) * PAGE + 16), np.nan, np.float32)
        sums = np.full(room + LANES + rows + 1, np.nan, np.float32)
        self.attend(
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
        assert np.isnan(sums[-1]), "beyond its room nothing is written"
        return mixed


def check_rows_are_the_same_everywhere(case: Case, before: int) -> None:
    """Each row of the tree is the same to the bit in a chain, with all before it cached, and with a part of the heads."""
    seen = seen_in(TREE)
    prefix, tree = list(range(before)), case.run(list(range(before + 9)), 9, seen)
    for row in range(9):
        path = [before + int(other) for other in np.flatnonzero(seen[row])]
        chain = case.run([*prefix, *path], len(path), None)
        np.testing.assert_array_equal(chain[-1], tree[row])
        cached = case.run([*prefix, *path], 1, None)
        np.testing.assert_array_equal(cached[-1], tree[row])
        behind = case.run([*prefix, *path], len(path), None, first=len(path) - 1, heads=slice(1, 2))
        np.testing.assert_array_equal(behind[-1], tree[row, 1:2])
