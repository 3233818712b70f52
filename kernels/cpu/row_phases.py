"""Phases of a forward that go row by row: norms, quantization, taps; and the rotation and the norm of a row's heads.

Halves of a head lie apart, each padded.
"""

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.blocks import largest_of_blocks, measured, quantized, sums_of_blocks
from kernels.cpu.emit import LANES, get, get_byte, get_int, kernel, put
from kernels.cpu.job import BLOCK, SQUARES, STREAM, lanes_of, mask_layer_bytes
from kernels.cpu.products.int8_products import products
from kernels.cpu.quantize import factor_of, norm_factor, quantize, rescale
from kernels.cpu.swiglu import silu
from kernels.cpu.threads import claim, claim_own, first_own, meet
from kernels.cpu.weighted_sums import weighted_sums

_EIGHTH, _ONE, _MOST, _TINY = (np.float32(number) for number in (0.125, 1.0, 127.0, 1e-30))
_lanes_of = kernel(lanes_of)
_mask_layer_bytes = kernel(mask_layer_bytes)


@kernel
def lanes_of_rows(job):  # type: ignore[no-untyped-def]
    """How many numbers `Job.peaks` has of a block."""
    return _lanes_of(job.rows)


@kernel
def peak(job, kind, block, row):  # type: ignore[no-untyped-def]
    """Where `Job.peaks` has a number of a row's block."""
    return job.peaks + 4 * ((kind * job.peak_blocks + block) * lanes_of_rows(job) + row)


@kernel
def stream_rows(sync, phase, model, job, layer, scratch):  # type: ignore[no-untyped-def]
    """What whole rows of the stream get before a layer: taps, and what mask tokens add; new numbers are measured."""
    is_new = layer == 0
    pieces = job.rows if is_new or job.tap_count or job.masks != 0 else 0
    done, row = 0, claim(sync, phase)
    while row < pieces:
        x, is_mask = job.x + 4 * row * model.hidden, job.masks != 0 and get_byte(job.masks, row) != 0
        tap(model, job, layer, row)
        if is_mask:
            adapted(model, layer, x, scratch)
        if is_new or is_mask:
            for block in range(model.hidden // BLOCK):
                place, top = types.intp(x + 4 * BLOCK * block), types.intp(peak(job, STREAM, block, row))
                measured(place, top, types.intp(peak(job, SQUARES, block, row)))
        done, row = done + 1, claim(sync, phase)
    meet(sync, phase, done, pieces)


@kernel
def row_steps(model, job, kind, width, turned, thread):  # type: ignore[no-untyped-def]
    """What a thread multiplies rows of so many columns with to quantize them (an address), followed by the scales of their
    bytes, which have the norm of the stream in them. turned: by a Hadamard transform without its factor.
    """
    lanes, blocks = lanes_of_rows(job), width // BLOCK
    steps = job.steps + 8 * lanes * thread
    scales, stride = steps + 4 * lanes, types.intp(4 * lanes)
    for first in range(0, lanes, LANES):
        step, scale = types.intp(steps + 4 * first), types.intp(scales + 4 * first)
        largest_of_blocks(types.intp(peak(job, kind, 0, first)), stride, types.intp(blocks), step)
        if kind == STREAM:
            sums_of_blocks(types.intp(peak(job, SQUARES, 0, first)), stride, types.intp(blocks), scale)
    unit = _EIGHTH if turned else _ONE
    for row in range(lanes):
        top = max(get(steps, row), _TINY)
        norm = factor_of(get(scales, row), model.true_hidden, model.eps) if kind == STREAM else unit
        put(steps, row, _MOST / top)
        put(scales, row, top / _MOST * norm)
    return steps


@kernel
def row_scales(model, job, kind, width, turned, thread):  # type: ignore[no-untyped-def]
    """The scales of `row_steps` alone."""
    return row_steps(model, job, kind, width, turned, thread) + 4 * lanes_of_rows(job)


@kernel
def quantized_blocks(sync, phase, model, job, source, width, kind, thread):  # type: ignore[no-untyped-def]
    """Bytes of measured rows [rows, width]: a piece is the blocks of columns that a thread's products have made."""
    blocks, threads = width // BLOCK, job.threads
    done, piece = 0, claim_own(sync, phase, threads, thread)
    if piece < threads:
        steps = row_steps(model, job, kind, width, False, thread)
        while piece < threads:
            first, stop = first_own(blocks, piece, threads), first_own(blocks, piece + 1, threads)
            for row in range(job.rows):
                x, out, step = source + 4 * row * width, job.bytes + row * job.byte_stride, get(steps, row)
                for at in range(first * BLOCK, stop * BLOCK, BLOCK):
                    quantized(types.intp(x + 4 * at), step, types.intp(out + at))
            done, piece = done + 1, claim_own(sync, phase, threads, thread)
    meet(sync, phase, done, threads)


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
    scale = quantize(x, hidden, inputs) * norm_of(model, x)
    products(inputs, hidden, 1, down, hidden // 4, rank, sums, 4 * rank, up)
    rescale(sums, rank, offsets, scales, 0, scale, out)
    silu(out, rank)
    scale = quantize(out, rank, inputs)
    products(inputs, rank, 1, up, rank // 4, hidden, sums, 4 * hidden, scales)
    rescale(sums, hidden, offsets + 4 * rank, scales + 4 * rank, 0, scale, out)
    for i in range(hidden):
        put(x, i, get(x, i) + get(out, i))


@kernel
def norm_of(model, x):  # type: ignore[no-untyped-def]
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
            put(job.head_scales, head, scale * norm_of(model, x))
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
