"""Rotary positions of one head, and the norm that Qwen3 has before them. Halves of a head lie apart, each padded."""

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import get, kernel, put
from kernels.cpu.quantize import norm_factor


@kernel
def rotate(head, half, cos, sin, factor):  # type: ignore[no-untyped-def]
    """In place: the pairs (i, i + half) of a head are turned by their angles and multiplied by `factor`. Addresses."""
    for i in range(half):
        a, b, c, s = get(head, i), get(head, i + half), get(cos, i) * factor, get(sin, i) * factor
        put(head, i, a * c - b * s)
        put(head, i + half, b * c + a * s)


def rotate_reference(
    heads: npt.NDArray[np.float32], cos: npt.NDArray[np.float32], sin: npt.NDArray[np.float32], factor: float
) -> npt.NDArray[np.float32]:
    """heads [rows, dim], cos and sin [rows, dim / 2]."""
    a, b = np.split(heads, 2, 1)
    c, s = cos * np.float32(factor), sin * np.float32(factor)
    return np.concatenate([a * c - b * s, b * c + a * s], 1)


@kernel
def norm(x, count, size, eps, weight):  # type: ignore[no-untyped-def]
    """RMS norm in place of `size` floats padded with zeros to `count`; addresses."""
    factor = norm_factor(x, count, size, eps)
    for i in range(count):
        put(x, i, get(x, i) * factor * get(weight, i))


def norm_reference(
    x: npt.NDArray[np.float32], size: int, eps: float, weight: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Of rows [rows, count]."""
    factor = 1 / np.sqrt(np.square(x.astype(np.float64)).sum(1, keepdims=True) / size + eps)
    out: npt.NDArray[np.float32] = (x * factor * weight).astype(np.float32)
    return out
