"""Keys and values of sequences in pages of 64 positions, which sequences with the same beginning share.

A full page below what a sequence has cached never changes, so it may belong to several. Dropping rows costs nothing,
nor does committing a chain; of a tree path only the rows that lie out of place are moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cpu.job import PAGE, aligned, aligned_copy, plane_bytes

_GROUP = 16  # outputs that the kernels' products take together
Page = npt.NDArray[Any]
Views = Sequence[npt.NDArray[Any]]


class Layout(Protocol):
    """How pages hold a position's keys and values."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> npt.DTypeLike: ...

    def new(self) -> Page:
        """A page with no position."""
        ...

    def at(self, page: Page, position: int) -> Views:
        """All that belongs to a position of the page."""
        ...


@dataclass(frozen=True, slots=True)
class FloatLayout:
    """fp32, as `kernels.cpu.attention.tree_attention` reads it.

    Of each plane (a layer and head) keys [dim, PAGE], then values [PAGE, dim].
    """

    planes: int
    dim: int
    dtype = np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.planes, 2, PAGE * self.dim

    def new(self) -> Page:
        """Keys begin as zeros, because scores are taken of whole pages: numbers too small for fp32's normal range would slow
        each product with them a hundredfold.
        """
        page = aligned(self.shape, self.dtype)
        page[:, 0] = 0.0
        return page

    def at(self, page: Page, position: int) -> Views:
        keys = page[:, 0].reshape(self.planes, self.dim, PAGE)
        values = page[:, 1].reshape(self.planes, PAGE, self.dim)
        return keys[:, :, position], values[:, position]


@dataclass(frozen=True, slots=True)
class ByteLayout:
    """Eight bits, as `kernels.cpu.attention.int8_attention` reads it."""

    planes: int
    dim: int
    dtype = np.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        return self.planes, plane_bytes(self.dim)

    def new(self) -> Page:
        """Scales begin as zeros: whatever lies at a position that is not written must be a number."""
        page = aligned(self.shape, self.dtype)
        page[:, 2 * PAGE * self.dim :] = 0
        return page

    def at(self, page: Page, position: int) -> Views:
        each = PAGE * self.dim
        keys = page[:, :each].reshape(self.planes, PAGE // _GROUP, self.dim // 4, _GROUP, 4)
        values = page[:, each : 2 * each].reshape(self.planes, self.dim // _GROUP, PAGE // 4, _GROUP, 4)
        numbers = page[:, 2 * each :].reshape(self.planes, 3, PAGE, 4)
        group, lane = divmod(position, _GROUP)
        return keys[:, group, :, lane], values[:, :, lane, :, group], numbers[:, :, position]


class Pages:
    """A growing list of pages. How many positions are valid is for the owner to know."""

    def __init__(self, layout: Layout, shared: Sequence[Page] = ()) -> None:
        self.layout = layout
        self.pages = list(shared)
        self.addresses = np.array([page.ctypes.data for page in self.pages], np.int64)

    @property
    def size_bytes(self) -> int:
        return sum(page.nbytes for page in self.pages)

    def reserve(self, needed: int, keep: int = 0) -> None:
        """Room for `needed` positions; what is there stays, so `keep` changes nothing."""
        count = -(-needed // PAGE)
        if count > len(self.pages):
            self.pages += [self.layout.new() for _ in range(count - len(self.pages))]
            self.addresses = np.array([page.ctypes.data for page in self.pages], np.int64)

    def of(self, pages: Sequence[Page]) -> "Pages":
        """Full pages that hold a sequence's beginning."""
        return Pages(self.layout, pages)

    def prefix(self, positions: int) -> "Pages":
        """The first positions for another sequence: full pages are shared, the last one is copied where it is not full."""
        full, rest = divmod(positions, PAGE)
        shared = self.pages[:full]
        if rest:
            shared.append(aligned_copy(self.pages[full]))
        return Pages(self.layout, shared)

    def compact(self, start: int, rows: Sequence[int]) -> None:
        """Move position `start + rows[i]` to `start + i`; rows ascend. Those that lie in place are not touched."""
        for index, row in enumerate(rows):
            if row != index:
                for old, new in zip(self._at(start + row), self._at(start + index), strict=True):
                    new[...] = old

    def _at(self, position: int) -> Views:
        return self.layout.at(self.pages[position // PAGE], position % PAGE)
