"""Arrays for kernels, which begin at a line of the cache.

numpy's own begin 16 bytes behind one, so that every vector of 64 bytes would lie across two lines, and so would every
row of a matrix tile.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LINE = 64  # bytes


def aligned(shape: int | Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like `np.empty`."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    room = np.empty(size + LINE, np.uint8)
    first = -room.__array_interface__["data"][0] % LINE
    return room[first : first + size].view(kind).reshape(shape)


def aligned_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Like `array.copy()`."""
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy
