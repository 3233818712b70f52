"""Phases of a forward that go row by row: norms, quantization, taps; and the rotation and the norm of a row's heads.

Halves of a head lie apart, each padded.
"""

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.emit import get, get_byte, get_int, kernel, put
from kernels.cpu.job import mask_layer_bytes
from kernels.cpu.products.int8_products import products
from kernels.cpu.quantize import hadamard, norm_factor, quantize, rescale
from kernels.cpu.swiglu import silu
from kernels.cpu.threads import claim, meet
from kernels.cpu.weighted_sums import weighted_sums

_EIGHTH, _ONE = np.float32(0.125), np.float32(1.0)
_mask_layer_bytes = kernel(mask_layer_bytes)


@kernel
def share_of(rows):  # type: ignore[no-untyped-def]
    """Rows that a thread takes at a time: few enough that there is something for each."""
    return max(1, rows // 16)


@kernel
def normed_stream(sync, phase, model, job, layer, is_first, scratch):  # type: ignore[no-untyped-def]
    """Norm and quantization of the stream before attention (first: taps, and what mask tokens get) or before the gates."""
    share = share_of(job.rows)
    pieces = (job.rows + share - 1) // share
    done, piece = 0, claim(sync, phase)
    while piece < pieces:
        start = piece * share
        for row in range(start, min(start + share, job.rows)):
            x = job.x + 4 * row * model.hidden
            if is_first:
                tap(model, job, layer, row)
                if job.masks != 0 and get_byte(job.masks, row) != 0:
                    adapted(model, layer, x, scratch)
            scale = quantize(x, model.hidden, job.bytes + row * job.byte_stride)
            put(job.row_scales, row, scale * stream_factor(model, x))
        done, piece = done + 1, claim(sync, phase)
    meet(sync, phase, done, pieces)


@kernel
def adapted(model, layer, x, room):  # type: ignore[no-untyped-def]
    """x + up @ silu(down @ norm(x)), in place: what a mask token's row gets before a layer (see `MaskAdapter`).

    room: 12 bytes for each number of the stream and for each component. Addresses.
    """
    rank, hidden = model.mask_rank, model.hidden
    down = model.mask_layers + layer * _mask_layer_bytes(rank, hidden)
    up, sums = down + rank * hidden, room
    scales, out = up + rank * hidden, sums + 4 * (rank + hidden)
    offsets, inputs = scales + 4 * (rank + hidden), out + 4 * (rank + hidden)
    scale = quantize(x, hidden, inputs) * stream_factor(model, x)
    products(inputs, hidden, 1, down, hidden // 4, rank, sums, 4 * rank, up)
    rescale(sums, rank, offsets, scales, 0, scale, out)
    silu(out, rank)
    scale = quantize(out, rank, inputs)
    products(inputs, rank, 1, up, rank // 4, hidden, sums, 4 * hidden, scales)
    rescale(sums, hidden, offsets + 4 * rank, scales + 4 * rank, 0, scale, out)
    for i in range(hidden):
        put(x, i, get(x, i) + get(out, i))


@kernel
def stream_factor(model, x):  # type: ignore[no-untyped-def]
    return norm_factor(x, model.hidden, model.true_hidden, epsilon(model))


@kernel
def epsilon(model):  # type: ignore[no-untyped-def]
    return np.float32(model.eps)


@kernel
def tap(model, job, layer, row):  # type: ignore[no-untyped-def]
    """A row of the stream, turned back block by block; the end of a block is overwritten by the next one."""
    plane = get_int(job.tap_planes, layer)
    if plane >= 0:
        size, wide = model.turned, (model.turned + 63) // 64 * 64
        x, out = job.x + 4 * row * model.hidden, job.taps + 4 * (plane * job.rows + row) * (model.hidden + 64)
        for first in range(0, model.true_hidden, size):
            block, to = types.intp(x + 4 * first), types.intp(out + 4 * first)
            weighted_sums(block, 0, 1, model.turn, 4 * wide, size, to, 0, wide, False, model.turn)


@kernel
def copy(source, count, target):  # type: ignore[no-untyped-def]
    for i in range(count):
        put(target, i, get(source, i))


@kernel
def quantized_rows(sync, phase, model, job, source, count, turns):  # type: ignore[no-untyped-def]
    """Quantization of rows [rows, count]; turns: with the Hadamard transform before it."""
    share = share_of(job.rows)
    pieces = (job.rows + share - 1) // share
    done, piece = 0, claim(sync, phase)
    while piece < pieces:
        start = piece * share
        for row in range(start, min(start + share, job.rows)):
            x = source + 4 * row * count
            if turns:
                hadamard(x, count)
            scale = quantize(x, count, job.bytes + row * job.byte_stride)
            put(job.row_scales, row, scale * (_EIGHTH if turns else _ONE))
        done, piece = done + 1, claim(sync, phase)
    meet(sync, phase, done, pieces)


@kernel
def last_rows(sync, phase, model, job):  # type: ignore[no-untyped-def]
    """The last layer's output for a tap, and the rows that the LM head sees, normed and quantized."""
    pieces = job.rows + job.head_count
    done, row = 0, claim(sync, phase)
    while row < pieces:
        if row < job.rows:
            tap(model, job, model.layers, row)
        else:
            head = row - job.rows
            x = job.x + 4 * get_int(job.head_rows, head) * model.hidden
            scale = quantize(x, model.hidden, job.head_bytes + head * model.hidden)
            put(job.head_scales, head, scale * stream_factor(model, x))
        done, row = done + 1, claim(sync, phase)
    meet(sync, phase, done, pieces)


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
