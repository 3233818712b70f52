"""Inputs of a product as eight-bit integers: a row's own scale, with the RMS norm or the Hadamard transform before it
fused in; and the product's sums as floats again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from kernels.cpu.emit import (
    FLOATS,
    INTEGERS,
    LANES,
    add_squares,
    constant,
    fma,
    get,
    get_int,
    intrinsic,
    kernel,
    largest_magnitude,
    load,
    loop,
    put,
    put_byte,
    splat,
    store,
)

POINTS = 64  # of the Hadamard transform
_TINY = np.float32(1e-30)
_HALF = np.float32(128.5)
_MOST = np.float32(127.0)

Quantized = tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]


@kernel
def quantize(x, count, out):  # type: ignore[no-untyped-def]
    """out[i] = round(127 x[i] / max |x|) + 128 for `count` floats, a multiple of 16; returns the scale. Addresses."""
    top = max(largest_magnitude(x, count), _TINY)
    step = _MOST / top
    for i in range(count):
        put_byte(out, i, np.uint8(np.int32(get(x, i) * step + _HALF)))
    return top / _MOST


def quantize_reference(x: npt.NDArray[np.float32]) -> Quantized:
    """Of rows [rows, columns]: bytes, and a scale for each row."""
    top = np.maximum(np.abs(x).max(1), _TINY).astype(np.float32)
    steps = x * (_MOST / top)[:, None] + _HALF
    return steps.astype(np.int32).astype(np.uint8), top / _MOST


@kernel
def norm_factor(x, count, size, eps):  # type: ignore[no-untyped-def]
    """What an RMS norm multiplies with: `size` floats at x, and zeros up to `count`, a multiple of 16."""
    return factor_of(add_squares(x, count), size, eps)


@kernel
def factor_of(squares, size, eps):  # type: ignore[no-untyped-def]
    """What the RMS norm of `size` floats multiplies with, of their sum of squares."""
    return np.float32(1.0) / np.sqrt(squares / np.float32(size) + np.float32(eps))


def norm_factor_reference(x: npt.NDArray[np.float32], size: int, eps: float) -> npt.NDArray[np.float32]:
    """For each of the rows [rows, columns], columns beyond `size` being zero."""
    return np.array([1 / np.sqrt(_squares(row) / np.float32(size) + np.float32(eps)) for row in x], np.float32)


def _squares(row: npt.NDArray[np.float32]) -> np.float32:
    lanes = np.zeros(16)
    for part in row.reshape(-1, 16).astype(np.float64):
        lanes = (lanes + part * part).astype(np.float32).astype(np.float64)
    return halves(lanes.astype(np.float32))


def halves(lanes: npt.NDArray[np.float32]) -> np.float32:
    """The sum of lanes, the second half added to the first until one is left: what the kernels do with sixteen."""
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(lanes[0])


@intrinsic
def _three_stages(typing: Any, x: Any, stride: Any) -> Any:
    """Three stages of the transform of eight points `stride` bytes apart, for eight columns that lie side by side."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, stride = arguments
        places = [b.mul(stride, constant(point)) for point in range(8)]
        points = [load(b, x, place, kind=ir.VectorType(ir.FloatType(), 8)) for place in places]
        for span in (1, 2, 4):
            lower = [point for point in range(8) if not point & span]
            for i in lower:
                low, high = points[i], points[i + span]
                points[i], points[i + span] = b.fadd(low, high), b.fsub(low, high)
        for place, point in zip(places, points, strict=True):
            store(b, point, x, place)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


def transformed(b: Any, vectors: Sequence[Any]) -> list[Any]:
    """The transform of 64 floats in four vectors, times 8, all of it in registers."""
    vectors = list(vectors)
    for span in (1, 2, 4, 8):
        places = ir.Constant(INTEGERS, [lane ^ span for lane in range(LANES)])
        signs = ir.Constant(FLOATS, [-1.0 if lane & span else 1.0 for lane in range(LANES)])
        vectors = [fma(b, each, signs, b.shuffle_vector(each, each, places)) for each in vectors]
    for span in (1, 2):
        for i in (index for index in range(len(vectors)) if not index & span):
            low, high = vectors[i], vectors[i + span]
            vectors[i], vectors[i + span] = b.fadd(low, high), b.fsub(low, high)
    return vectors


@kernel
def hadamard(x, count):  # type: ignore[no-untyped-def]
    """In place, 64 points of a stride of count / 64 each, times 8 (the transform itself is orthonormal). x: an address."""
    stride = count // POINTS
    if stride % 8 == 0:
        for span in (stride, 8 * stride):
            for first in range(0, count, 8 * span):
                for i in range(first, first + span, 8):
                    _three_stages(types.intp(x + 4 * i), 4 * span)
        return
    while stride < count:
        for first in range(0, count, 2 * stride):
            for i in range(first, first + stride):
                a, b = get(x, i), get(x, i + stride)
                put(x, i, a + b)
                put(x, i + stride, a - b)
        stride *= 2


def hadamard_reference(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The transform of rows [rows, columns], without the factor 8; of a weight's rows it undoes that of the inputs."""
    matrix = np.ones((1, 1))
    while len(matrix) < POINTS:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    split = x.reshape(len(x), POINTS, -1)
    out: npt.NDArray[np.float32] = np.einsum("ij,rjs->ris", matrix, split / 8).reshape(x.shape).astype(np.float32)
    return out


@intrinsic
def _rescale_vectors(typing: Any, sums: Any, count: Any, offsets: Any, scales: Any, factor: Any, out: Any) -> Any:
    """Of whole vectors of sixteen outputs. Written out, because a loop would check for overlaps at every call."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        sums, count, offsets, scales, factor, out = arguments
        factors = splat(b, factor)

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            total = b.sub(load(b, sums, at, kind=INTEGERS), load(b, offsets, at, kind=INTEGERS))
            store(b, b.fmul(b.sitofp(total, FLOATS), b.fmul(factors, load(b, scales, at))), out, at)
            return carried

        loop(b, count, [], body)
        return context.get_dummy_value()

    word = types.intp
    return types.void(word, word, word, word, types.float32, word), codegen


@kernel
def rescale(sums, outputs, offsets, scales, biases, input_scale, out):  # type: ignore[no-untyped-def]
    """out[o] = (sums[o] - offsets[o]) * input_scale * scales[o] + biases[o], fp32; addresses. biases 0: none."""
    _rescale_vectors(sums, outputs // LANES, offsets, scales, input_scale, out)
    for o in range(outputs // LANES * LANES, outputs):
        put(out, o, np.float32(get_int(sums, o) - get_int(offsets, o)) * (input_scale * get(scales, o)))
    if biases != 0:
        for o in range(outputs):
            put(out, o, get(out, o) + get(biases, o))
