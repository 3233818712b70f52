"""Keys and values of sequences in pages of 64 positions, which sequences with the same beginning share.

A full page below what a sequence has cached never changes, so it may belong to several. Dropping rows costs nothing,
nor does committing a chain; of a tree path only the rows that lie out of place are moved.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kernels.cpu.job import PAGE, aligned, aligned_copy

Page = npt.NDArray[np.float32]  # [layers * kv_heads, 2, PAGE * dim]: keys [dim, PAGE], then values [PAGE, dim]


class Pages:
    """A growing list of pages. How many positions are valid is for the owner to know."""

    def __init__(self, planes: int, dim: int, shared: Sequence[Page] = ()) -> None:
        self._planes, self._dim = planes, dim
        self.pages = list(shared)
        self.addresses = np.array([page.ctypes.data for page in self.pages], np.int64)

    @property
    def size_bytes(self) -> int:
        return sum(page.nbytes for page in self.pages)

    def reserve(self, needed: int, keep: int = 0) -> None:
        """Room for `needed` positions; what is there stays, so `keep` changes nothing."""
        count = -(-needed // PAGE)
        if count > len(self.pages):
            self.pages += [self._new() for _ in range(count - len(self.pages))]
            self.addresses = np.array([page.ctypes.data for page in self.pages], np.int64)

    @property
    def page_shape(self) -> tuple[int, ...]:
        return self._planes, 2, PAGE * self._dim

    def of(self, pages: Sequence[Page]) -> "Pages":
        """Full pages that hold a sequence's beginning."""
        return Pages(self._planes, self._dim, pages)

    def prefix(self, positions: int) -> "Pages":
        """The first positions for another sequence: full pages are shared, the last one is copied where it is not full."""
        full, rest = divmod(positions, PAGE)
        shared = self.pages[:full]
        if rest:
            shared.append(aligned_copy(self.pages[full]))
        return Pages(self._planes, self._dim, shared)

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Move position `start + rows[i]` to `start + i`; rows ascend. Those that lie in place are not touched."""
        for index, row in enumerate(rows):
            if row != index:
                for old, new in zip(self._at(start + row), self._at(start + index), strict=True):
                    new[...] = old

    def _at(self, position: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        page, at = self.pages[position // PAGE], position % PAGE
        keys = page[:, 0].reshape(self._planes, self._dim, PAGE)
        values = page[:, 1].reshape(self._planes, PAGE, self._dim)
        return keys[:, :, at], values[:, at]

    def _new(self) -> Page:
        """Keys begin as zeros, because scores are taken of whole pages: numbers too small for fp32's normal range would slow
        each product with them a hundredfold.
        """
        page: Page = aligned(self.page_shape, np.float32)
        page[:, 0] = 0.0
        return page
