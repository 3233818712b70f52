"""Phases of a forward: token by token, products with a matrix, and around attention.

Token by token are norms, quantization, taps, and the rotation and the norm of a row's heads; halves of a head are stored apart,
each padded. Products go a block of outputs at a time, and their sums are processed at once. Around attention are queries, keys
and values, and what they mix.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.blocks import added, gated, largest_of_blocks, measured, quantized, sums_of_blocks
from kernels.cpu.emit import LANES, get, get_byte, get_int, get_long, kernel, put
from kernels.cpu.int8_attention import attend_int8, write_key, write_value
from kernels.cpu.int8_products import prepare, products, release
from kernels.cpu.job import (
    BLOCK,
    CHUNK,
    GROUP_ROWS,
    INNER,
    LINE,
    MATRICES,
    OUTPUTS,
    PAGE,
    SQUARES,
    STREAM,
    lanes_of,
    mask_layer_bytes,
    plane_bytes,
)
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


_LEAST_SHARE = 4  # rows of a piece that is divided among threads


@kernel
def product(model, job, matrix, inputs, first, outputs, start, rows, sums, ahead):  # type: ignore[no-untyped-def]
    """sums [rows, outputs] of the rows from `start` on and the outputs from `first` on. ahead: see `weights_after`."""
    weight = get_long(model.matrices, matrix) + first * inputs
    x = job.bytes + start * job.byte_stride
    products(x, job.byte_stride, rows, weight, inputs // 4, outputs, sums, 4 * outputs, ahead)


@kernel
def _units_of(job, matrix, pieces):  # type: ignore[no-untyped-def]
    """How many units of work the pieces of a matrix are: where they do not go round evenly and there are enough rows, each of
    the last ones is divided among all threads by its rows. Not those of values: rows of a page share their bytes' words.
    """
    rest = pieces % job.threads
    is_divided = matrix % MATRICES != 0 and job.rows >= _LEAST_SHARE * job.threads
    return pieces - rest + rest * job.threads if is_divided else pieces


@kernel
def _unit_of(job, matrix, pieces, unit):  # type: ignore[no-untyped-def]
    """Piece, first row and end of the rows of a unit. A thread's own are pieces side by side, then its shares of others."""
    if _units_of(job, matrix, pieces) == pieces:
        return unit, 0, job.rows
    threads, whole = job.threads, pieces // job.threads
    each = whole + pieces % threads
    owner, place = unit // each, unit % each
    if place < whole:
        return owner * whole + place, 0, job.rows
    return whole * (threads - 1) + place, job.rows * owner // threads, job.rows * (owner + 1) // threads


@kernel
def weights_after(model, job, matrix, unit, pieces, thread):  # type: ignore[no-untyped-def]
    """Where a thread's next weights are, after a unit of a matrix: those of the next, or its first one of the next matrix.

    So memory is asked for them a whole piece before, and goes on reading while sums are rescaled and threads meet.
    """
    size, _ = _pieces_of(model, matrix)
    if unit + 1 != first_own(_units_of(job, matrix, pieces), thread + 1, job.threads):
        piece, _, _ = _unit_of(job, matrix, pieces, unit + 1)
        return get_long(model.matrices, matrix) + piece * size
    size, count = _pieces_of(model, matrix + 1)
    following = first_own(_units_of(job, matrix + 1, count), thread, job.threads)
    piece, _, _ = _unit_of(job, matrix + 1, count, following)
    return get_long(model.matrices, matrix + 1) + piece * size


@kernel
def _pieces_of(model, matrix):  # type: ignore[no-untyped-def]
    """Bytes of a piece of a matrix of a layer, and how many pieces it has. The LM head comes last."""
    kind = matrix % MATRICES
    if matrix == MATRICES * model.layers:
        return CHUNK * model.hidden, (model.vocab + CHUNK - 1) // CHUNK
    if kind == 0:
        return model.dim * model.hidden, model.heads + 2 * model.kv_heads
    if kind == 1:
        return BLOCK * model.heads * model.dim, model.hidden // BLOCK
    if kind == 2:
        return 2 * BLOCK * model.hidden, model.inner // BLOCK
    return BLOCK * model.inner, model.hidden // BLOCK


@kernel
def rescaled(model, matrix, first, outputs, sums, input_scale, out):  # type: ignore[no-untyped-def]
    bias = get_long(model.biases, matrix)
    offsets, scales = get_long(model.offsets, matrix) + 4 * first, get_long(model.scales, matrix) + 4 * first
    rescale(sums, outputs, offsets, scales, bias + 4 * first if bias else 0, input_scale, out)


@kernel
def residual_product(sync, phase, model, job, matrix, inputs, thread, scratch):  # type: ignore[no-untyped-def]
    """A product that is added to the stream, a block of outputs at a time."""
    pieces = model.hidden // BLOCK
    units, done, ready = _units_of(job, matrix, pieces), 0, 0
    unit = claim_own(sync, phase, units, thread)
    if unit < units:
        scales = row_scales(model, job, INNER, inputs, matrix % MATRICES == MATRICES - 1, thread)
    while unit < units:
        block, begin, end = _unit_of(job, matrix, pieces, unit)
        first, ahead = block * BLOCK, weights_after(model, job, matrix, unit, pieces, thread)
        for start in range(begin, end, GROUP_ROWS):
            rows = min(GROUP_ROWS, end - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * BLOCK
            ready = prepare(rows, ready)
            product(model, job, matrix, inputs, first, BLOCK, start, rows, sums, ahead)
            for row in range(start, start + rows):
                rescaled(model, matrix, first, BLOCK, sums + 4 * (row - start) * BLOCK, get(scales, row), out)
                x, top = types.intp(job.x + 4 * (row * model.hidden + first)), types.intp(peak(job, STREAM, block, row))
                added(x, types.intp(out), top, types.intp(peak(job, SQUARES, block, row)))
        done, unit = done + 1, claim_own(sync, phase, units, thread)
    release()
    meet(sync, phase, done, units)


@kernel
def gate_products(sync, phase, model, job, matrix, thread, scratch):  # type: ignore[no-untyped-def]
    """The transform of silu(gate) * up, a block at a time: 64 outputs are gates, 64 are their ups."""
    pieces, outputs = model.inner // BLOCK, 2 * BLOCK
    units, done, ready = _units_of(job, matrix, pieces), 0, 0
    unit = claim_own(sync, phase, units, thread)
    if unit < units:
        scales = row_scales(model, job, STREAM, model.hidden, False, thread)
    while unit < units:
        block, begin, end = _unit_of(job, matrix, pieces, unit)
        first, ahead = block * outputs, weights_after(model, job, matrix, unit, pieces, thread)
        for start in range(begin, end, GROUP_ROWS):
            rows = min(GROUP_ROWS, end - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * outputs
            ready = prepare(rows, ready)
            product(model, job, matrix, model.hidden, first, outputs, start, rows, sums, ahead)
            for row in range(start, start + rows):
                rescaled(model, matrix, first, outputs, sums + 4 * (row - start) * outputs, get(scales, row), out)
                inner, top = job.inner + 4 * (row * model.inner + block * BLOCK), peak(job, INNER, block, row)
                gated(types.intp(out), types.intp(out + 4 * BLOCK), types.intp(inner), types.intp(top))
        done, unit = done + 1, claim_own(sync, phase, units, thread)
    release()
    meet(sync, phase, done, units)


_PHASE_ONE = np.float32(1.0)
_plane_bytes = kernel(plane_bytes)


@kernel
def qkv_products(sync, phase, model, job, layer, thread, scratch):  # type: ignore[no-untyped-def]
    """A head of queries, keys or values at a time, which leaves rotated, keys and values for their pages."""
    pieces = model.heads + 2 * model.kv_heads
    done, ready, unit = 0, 0, claim_own(sync, phase, pieces, thread)
    if unit < pieces:
        scales = row_scales(model, job, STREAM, model.hidden, False, thread)
    while unit < pieces:
        ahead = weights_after(model, job, 4 * layer, unit, pieces, thread)
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * model.dim
            ready = prepare(rows, ready)
            product(model, job, 4 * layer, model.hidden, unit * model.dim, model.dim, start, rows, sums, ahead)
            for row in range(start, start + rows):
                mine, scale = sums + 4 * (row - start) * model.dim, get(scales, row)
                if unit < model.heads:
                    out = job.queries + 4 * (row * model.heads + unit) * model.dim
                rescaled(model, 4 * layer, unit * model.dim, model.dim, mine, scale, out)
                if unit < model.heads:
                    factor = np.float32(math.log2(math.e) / (64 * math.sqrt(model.true_dim)))
                    _position(model, job, layer, 0, row, out, factor)
                else:
                    _remember(model, job, layer, unit - model.heads, row, out, out + 4 * model.dim)
        done, unit = done + 1, claim_own(sync, phase, pieces, thread)
    release()
    meet(sync, phase, done, pieces)


@kernel
def _position(model, job, layer, kind, row, head, factor):  # type: ignore[no-untyped-def]
    """Norm (kind 0: of queries, 1: of keys) and rotation of a head."""
    if model.qk_norms:
        weight = model.qk_norms + 4 * (2 * layer + kind) * model.dim
        norm(head, model.dim, model.true_dim, epsilon(model), weight)
    half = model.dim // 2
    rotate(head, half, job.cos + 4 * row * half, job.sin + 4 * row * half, factor)


@kernel
def _remember(model, job, layer, unit, row, head, room):  # type: ignore[no-untyped-def]
    """Keys (the first units) or values of a row, into its sequence's page. room: bytes of a head."""
    slot = get_int(job.slots, row)
    at, kv_head = slot % PAGE, unit % model.kv_heads
    plane = get_long(get_long(job.pages, row), slot // PAGE) + _plane(model, layer, kv_head)
    if unit < model.kv_heads:
        _position(model, job, layer, 1, row, head, _PHASE_ONE)
        write_key(head, model.dim, room, plane, at)
    else:
        write_value(head, model.dim, plane, at)


@kernel
def _plane(model, layer, kv_head):  # type: ignore[no-untyped-def]
    """How far into a page the keys of a layer and head begin; its values follow."""
    return (layer * model.kv_heads + kv_head) * _plane_bytes(model.dim)


@kernel
def attention(sync, phase, model, job, layer, scratch):  # type: ignore[no-untyped-def]
    """A tile of a sequence's rows and one head of keys at a time; single heads of queries where threads would idle.

    Of a sequence's few rows, a thread takes all tiles of a head of keys, so that one thread alone reads these keys and values.
    """
    group, tiles, whole = model.heads // model.kv_heads, job.tile_count, _whole_heads(model, job)
    rest = model.kv_heads - whole
    some = group if tiles * rest >= 2 * job.threads else 1
    ways = rest * group // some
    pieces = whole + tiles * ways
    done, unit = 0, claim(sync, phase)
    while unit < pieces:
        if unit < whole:
            for tile in range(tiles):
                _attend_tile(model, job, layer, tile, unit * group, group, scratch)
        else:
            tile, way = (unit - whole) // ways, (unit - whole) % ways
            _attend_tile(model, job, layer, tile, whole * group + way * some, some, scratch)
        done, unit = done + 1, claim(sync, phase)
    meet(sync, phase, done, pieces)


@kernel
def _whole_heads(model, job):  # type: ignore[no-untyped-def]
    """How many heads of keys go to one thread each, as many to each thread: none where there are several sequences or many
    tiles, which keep threads equally busy.
    """
    is_busy = job.one_part == 0 or job.tile_count >= 2 * job.threads
    return 0 if is_busy else model.kv_heads // job.threads * job.threads


@kernel
def _attend_tile(model, job, layer, tile, first_head, heads, scratch):  # type: ignore[no-untyped-def]
    plane = _plane(model, layer, first_head // (model.heads // model.kv_heads))
    part = job.parts + 48 * get_int(job.tiles, 3 * tile)
    first, stop = get_int(job.tiles, 3 * tile + 1), get_int(job.tiles, 3 * tile + 2)
    start = get_long(part, 0) + first
    scores = (scratch + 4 * (OUTPUTS + LANES + stop) + LINE) // LINE * LINE
    room = (scores + OUTPUTS * job.score_stride + LINE) // LINE * LINE
    place, stride = 4 * (start * model.heads + first_head) * model.dim, 4 * model.heads * model.dim
    attend_int8(
        job.queries + place,
        heads,
        model.dim,
        get_long(part, 1),
        plane,
        get_long(part, 2),
        first,
        stop,
        get_long(part, 3),
        get_long(part, 4),
        get_long(part, 5),
        scores,
        job.score_stride,
        scratch,
        job.mixed + place,
        room,
        stride,
        peak(job, INNER, first_head * model.dim // BLOCK, start),
        4 * lanes_of_rows(job),
    )
