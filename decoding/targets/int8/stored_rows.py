"""Rows of an array that is kept in a file, read one by one."""

import os
from weakref import finalize

import numpy as np
import numpy.typing as npt

from decoding.engine.sampling.numpy_choice import Floats
from decoding.targets.int8.buffers import Longs


class StoredRows:
    """The rows of an fp32 array; None: there are none.

    Of a mapped array they are read from its file: the kernel would map the pages around each of them, which is half of an
    embedding after a few hundred tokens.
    """

    def __init__(self, rows: npt.NDArray[np.float32] | None) -> None:
        self._rows = rows
        self._start, self._file = 0, -1
        if isinstance(rows, np.memmap) and rows.flags.c_contiguous and hasattr(os, "preadv"):
            self._start, self._file = rows.offset, os.open(str(rows.filename), os.O_RDONLY)
            finalize(self, os.close, self._file)

    def take(self, wanted: Longs, out: Floats) -> None:
        """Copy rows into `out` [rows, columns], which lies in one piece. Raises OSError where they cannot be read."""
        assert self._rows is not None
        if self._file < 0:
            np.take(self._rows, wanted, 0, out=out)
            return
        size = out.shape[1] * out.itemsize
        for row, place in zip(out, wanted.tolist(), strict=True):
            if os.preadv(self._file, [row], self._start + place * size) != size:
                raise OSError("the packed model's file is shorter than it was; remove it, and it is made anew")
