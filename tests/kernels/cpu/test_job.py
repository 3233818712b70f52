"""Arrays for kernels: numpy's own begin anywhere, which halves the speed of wide loads."""

import numpy as np
import pytest

from kernels.cpu.job import LINE, aligned, aligned_copy


@pytest.mark.parametrize(
    ("shape", "dtype"), [(1, np.uint8), ((3, 5), np.float32), ((2, 7, 9), np.int64), ((0, 4), np.int8)]
)
def test_arrays_begin_at_a_line(shape: int | tuple[int, ...], dtype: type[np.generic]) -> None:
    for _ in range(8):
        array = aligned(shape, dtype)
        assert array.ctypes.data % LINE == 0 or not array.size
        assert array.shape == np.empty(shape, dtype).shape and array.dtype == dtype
        array[...] = 1  # is ours to write


def test_a_copy_has_the_numbers() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, 1:]
    copy = aligned_copy(array)
    np.testing.assert_array_equal(copy, array)
    copy[...] = 0
    assert array.any(), "what is copied stays"
