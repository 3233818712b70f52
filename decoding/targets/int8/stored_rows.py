"""Rows of an array that is kept in a file, read one by one."""

import os
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

from decoding.engine.sampling.numpy_choice import Floats
from decoding.targets.int8.buffers import Longs

_MOST_KEPT = 4096  # rows: 9 MB of the embedded model's


class StoredRows:
    """The rows of an fp32 array; None: there are none.

    Of a mapped array they are read from its file: the kernel would map the pages around each of them, which is half of an
    embedding after a few hundred tokens. What was read is kept, because texts about one database repeat their words.
    """

    def __init__(self, rows: npt.NDArray[np.float32] | None) -> None:
        self._rows = rows
        self._start, self._file = 0, -1
        self._kept: dict[int, npt.NDArray[np.float32]] = {}
        if isinstance(rows, np.memmap) and rows.flags.c_contiguous and hasattr(os, "preadv"):
            self._start, self._file = rows.offset, os.open(str(rows.filename), os.O_RDONLY)
            finalize(self, os.close, self._file)

    def take(self, wanted: Longs, out: Floats) -> None:
        """Copy rows into `out` [rows, columns], which lies in one piece. Raises OSError where they cannot be read."""
        assert self._rows is not None
        if self._file < 0:
            np.take(self._rows, wanted, 0, out=out)
            return
        for row, place in zip(out, wanted.tolist(), strict=True):
            row[...] = self._kept[place] if place in self._kept else self._read(place)

    def _read(self, place: int) -> Any:
        assert self._rows is not None
        row: Any = np.empty(self._rows.shape[1], np.float32)
        if os.preadv(self._file, [row], self._start + place * row.nbytes) != row.nbytes:
            raise OSError("the packed model's file is shorter than it was; remove it, and it is made anew")
        if len(self._kept) == _MOST_KEPT:
            self._kept.clear()
        self._kept[place] = row
        return row
