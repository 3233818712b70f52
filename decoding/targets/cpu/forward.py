"""The whole forward of an int8 model in one compiled call, which every thread of a team enters.

Threads take pieces of each phase and wait for each other between phases. Which thread does what changes nothing: an output is
computed by one of them, in an order of its own.
"""

import math
from typing import NamedTuple

import numpy as np

from kernels.cpu.emit import get, get_int, get_long, kernel, put, put_long
from kernels.cpu.int8_products import BLOCK, products, rescale
from kernels.cpu.lm_head import CHUNK, choose
from kernels.cpu.quantize import hadamard, norm_factor, quantize
from kernels.cpu.rope import norm, rotate
from kernels.cpu.swiglu import swiglu
from kernels.cpu.threads import claim, wait
from kernels.cpu.tree_attention import PAGE, attend

MATRICES = 4  # of a layer: qkv, attention's output, gate and up, down
PHASES = 9  # of a layer, at most
GROUP_ROWS = 24  # whose sums are rescaled while they are in the first cache
HALF_BLOCK = BLOCK // 2  # gates of a block, and as many ups
_EIGHTH, _ONE = np.float32(0.125), np.float32(1.0)


class Model(NamedTuple):
    """Sizes, padded as `packed_model` pads them, and addresses."""

    layers: int
    heads: int
    kv_heads: int
    dim: int  # of a head, padded: a multiple of 64
    true_dim: int
    hidden: int  # a multiple of 64
    true_hidden: int
    inner: int  # a multiple of 64
    vocab: int
    matrices: int  # address of each packed matrix: [4 layers + 1], the LM head last
    scales: int  # address of each matrix's fp32 [outputs]
    offsets: int  # of its int32 [outputs]
    biases: int  # of its fp32 [outputs], or 0
    qk_norms: int  # fp32 [layers, 2, dim], or 0
    eps: float  # of the norms


class Job(NamedTuple):
    """One forward: rows of several sequences, and buffers. All int64; addresses but for the counts."""

    layers: int  # 0: the LM head alone, of rows that are quantized already
    rows: int
    x: int  # fp32 [rows, hidden]: embeddings, rotated; the last layer's output in the end
    cos: int  # fp32 [rows, dim / 2]
    sin: int
    slots: int  # int32 [rows]: where a row's keys and values go in its sequence
    pages: int  # int64 [rows]: address of its sequence's list of pages
    tiles: int  # int32 [tiles, 3]: part, first row, row behind the last
    tile_count: int
    parts: int  # int64 [parts, 6]: first row, pages, before, own rows (0: a chain), their stride in bytes, their counts
    tap_planes: int  # int32 [layers + 1]: plane of `taps`, or -1
    taps: int  # fp32 [planes, rows, hidden]
    head_rows: int  # int32 [heads]
    head_count: int
    head_bytes: int  # uint8 [heads, hidden]
    head_scales: int  # fp32 [heads]
    heats: int  # fp32 [heads]; then seeds and positions, int64
    seeds: int
    positions: int
    best: int  # fp32 [threads, heads]
    tokens: int  # int64 [threads, heads]; those of the first thread are the choice in the end
    logits: int  # fp32 [heads, vocab] instead of a choice, or 0
    bytes: int  # uint8 [rows, byte_stride]
    byte_stride: int
    row_scales: int  # fp32 [rows]
    queries: int  # fp32 [rows, heads, dim]
    mixed: int  # fp32 [rows, heads, dim]
    inner: int  # fp32 [rows, inner]
    scratch: int  # of each thread
    scratch_stride: int
    score_stride: int  # bytes of a row of scores


@kernel
def forward(thread, threads, sync, model, job):  # type: ignore[no-untyped-def]
    """See `Model` and `Job`; called by `kernels.cpu.threads.Team`."""
    scratch = job.scratch + thread * job.scratch_stride
    for layer in range(job.layers):
        phase = layer * PHASES
        _enter(sync, phase, threads, model, job, layer, True)
        _qkv(sync, phase + 1, threads, model, job, layer, scratch)
        _attention(sync, phase + 2, threads, model, job, layer, scratch)
        _rows(sync, phase + 3, threads, model, job, job.mixed, model.heads * model.dim, False)
        _residual(sync, phase + 4, threads, model, job, 4 * layer + 1, model.heads * model.dim, scratch)
        _enter(sync, phase + 5, threads, model, job, layer, False)
        _gates(sync, phase + 6, threads, model, job, 4 * layer + 2, scratch)
        _rows(sync, phase + 7, threads, model, job, job.inner, model.inner, True)
        _residual(sync, phase + 8, threads, model, job, 4 * layer + 3, model.inner, scratch)
    phase = job.layers * PHASES
    if job.layers:
        _leave(sync, phase, threads, model, job)
    _head(sync, phase + 1, threads, model, job, thread, scratch)
    if thread == 0 and job.logits == 0:
        _elect(threads, job)


@kernel
def _share(rows, threads):  # type: ignore[no-untyped-def]
    """Rows that a thread takes at a time."""
    return max(1, rows // (4 * threads))


@kernel
def _enter(sync, phase, threads, model, job, layer, is_first):  # type: ignore[no-untyped-def]
    """Norm and quantization of the stream before attention (first: a tap may ask for it) or before the gates."""
    share = _share(job.rows, threads)
    while True:
        start = claim(sync, phase) * share
        if start >= job.rows:
            break
        for row in range(start, min(start + share, job.rows)):
            x = job.x + 4 * row * model.hidden
            if is_first:
                _tap(model, job, layer, row)
            scale = quantize(x, model.hidden, job.bytes + row * job.byte_stride)
            put(job.row_scales, row, scale * _norm_factor(model, x))
    wait(sync, threads)


@kernel
def _norm_factor(model, x):  # type: ignore[no-untyped-def]
    return norm_factor(x, model.hidden, model.true_hidden, _eps(model))


@kernel
def _eps(model):  # type: ignore[no-untyped-def]
    return np.float32(model.eps)


@kernel
def _tap(model, job, layer, row):  # type: ignore[no-untyped-def]
    plane = get_int(job.tap_planes, layer)
    if plane >= 0:
        _copy(job.x + 4 * row * model.hidden, model.hidden, job.taps + 4 * (plane * job.rows + row) * model.hidden)


@kernel
def _copy(source, count, target):  # type: ignore[no-untyped-def]
    for i in range(count):
        put(target, i, get(source, i))


@kernel
def _rows(sync, phase, threads, model, job, source, count, turns):  # type: ignore[no-untyped-def]
    """Quantization of rows [rows, count]; turns: with the Hadamard transform before it."""
    share = _share(job.rows, threads)
    while True:
        start = claim(sync, phase) * share
        if start >= job.rows:
            break
        for row in range(start, min(start + share, job.rows)):
            x = source + 4 * row * count
            if turns:
                hadamard(x, count)
            scale = quantize(x, count, job.bytes + row * job.byte_stride)
            put(job.row_scales, row, scale * (_EIGHTH if turns else _ONE))
    wait(sync, threads)


@kernel
def _product(model, job, matrix, inputs, first, outputs, start, rows, sums):  # type: ignore[no-untyped-def]
    """sums [rows, outputs] of the rows from `start` on and the outputs from `first` on."""
    weight = get_long(model.matrices, matrix) + first * inputs
    x = job.bytes + start * job.byte_stride
    products(x, job.byte_stride, rows, weight, inputs // 4, outputs, sums, 4 * outputs)


@kernel
def _rescaled(model, matrix, first, outputs, sums, input_scale, out):  # type: ignore[no-untyped-def]
    bias = get_long(model.biases, matrix)
    offsets, scales = get_long(model.offsets, matrix) + 4 * first, get_long(model.scales, matrix) + 4 * first
    rescale(sums, outputs, offsets, scales, bias + 4 * first if bias else 0, input_scale, out)


@kernel
def _qkv(sync, phase, threads, model, job, layer, scratch):  # type: ignore[no-untyped-def]
    """A head of queries, keys or values at a time, which leaves rotated, keys and values for their pages."""
    while True:
        unit = claim(sync, phase)
        if unit >= model.heads + 2 * model.kv_heads:
            break
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * model.dim
            _product(model, job, 4 * layer, model.hidden, unit * model.dim, model.dim, start, rows, sums)
            for row in range(start, start + rows):
                mine, scale = sums + 4 * (row - start) * model.dim, get(job.row_scales, row)
                if unit < model.heads:
                    out = job.queries + 4 * (row * model.heads + unit) * model.dim
                _rescaled(model, 4 * layer, unit * model.dim, model.dim, mine, scale, out)
                if unit < model.heads:
                    factor = np.float32(math.log2(math.e) / math.sqrt(model.true_dim))
                    _position(model, job, layer, 0, row, out, factor)
                else:
                    _remember(model, job, layer, unit - model.heads, row, out)
    wait(sync, threads)


@kernel
def _position(model, job, layer, kind, row, head, factor):  # type: ignore[no-untyped-def]
    """Norm (kind 0: of queries, 1: of keys) and rotation of a head."""
    if model.qk_norms:
        weight = model.qk_norms + 4 * (2 * layer + kind) * model.dim
        norm(head, model.dim, model.true_dim, _eps(model), weight)
    half = model.dim // 2
    rotate(head, half, job.cos + 4 * row * half, job.sin + 4 * row * half, factor)


@kernel
def _remember(model, job, layer, unit, row, head):  # type: ignore[no-untyped-def]
    """Keys (the first units) or values of a row, into its sequence's page."""
    slot = get_int(job.slots, row)
    page = get_long(get_long(job.pages, row), slot // PAGE)
    at, kv_head = slot % PAGE, unit % model.kv_heads
    plane = page + _plane(model, layer, kv_head)
    if unit < model.kv_heads:
        _position(model, job, layer, 1, row, head, _ONE)
        for i in range(model.dim):
            put(plane, i * PAGE + at, get(head, i))
    else:
        _copy(head, model.dim, plane + 4 * (PAGE + at) * model.dim)


@kernel
def _plane(model, layer, kv_head):  # type: ignore[no-untyped-def]
    """How far into a page the keys of a layer and head begin; its values follow."""
    return 4 * (layer * model.kv_heads + kv_head) * 2 * PAGE * model.dim


@kernel
def _attention(sync, phase, threads, model, job, layer, scratch):  # type: ignore[no-untyped-def]
    """A tile of a sequence's rows and one head of keys at a time; single heads of queries where there are few tiles."""
    group = model.heads // model.kv_heads
    some = group if job.tile_count * model.kv_heads >= 4 * threads else 1
    while True:
        unit = claim(sync, phase)
        if unit >= job.tile_count * (model.heads // some):
            break
        tile, first_head = unit // (model.heads // some), unit % (model.heads // some) * some
        _attend_tile(model, job, layer, tile, first_head, some, _plane(model, layer, first_head // group), scratch)
    wait(sync, threads)


@kernel
def _attend_tile(model, job, layer, tile, first_head, heads, plane, scratch):  # type: ignore[no-untyped-def]
    part = job.parts + 48 * get_int(job.tiles, 3 * tile)
    first, stop = get_int(job.tiles, 3 * tile + 1), get_int(job.tiles, 3 * tile + 2)
    start, width = get_long(part, 0) + first, heads * model.dim
    queries = scratch
    mixed = queries + 4 * (stop - first) * width
    sums = mixed + 4 * (stop - first) * width
    scores = sums + 4 * ((stop - first) * heads + stop + 64)
    for row in range(stop - first):
        place = 4 * ((start + row) * model.heads + first_head) * model.dim
        _copy(job.queries + place, width, queries + 4 * row * width)
    pages, before, own, own_stride, counts = (
        get_long(part, 1),
        get_long(part, 2),
        get_long(part, 3),
        get_long(part, 4),
        get_long(part, 5),
    )
    attend(
        queries,
        heads,
        model.dim,
        pages,
        plane,
        before,
        first,
        stop,
        own,
        own_stride,
        counts,
        scores,
        job.score_stride,
        sums,
        mixed,
    )
    for row in range(stop - first):
        place = 4 * ((start + row) * model.heads + first_head) * model.dim
        _copy(mixed + 4 * row * width, width, job.mixed + place)


@kernel
def _residual(sync, phase, threads, model, job, matrix, inputs, scratch):  # type: ignore[no-untyped-def]
    """A product that is added to the stream, a block of outputs at a time."""
    while True:
        first = claim(sync, phase) * BLOCK
        if first >= model.hidden:
            break
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * BLOCK
            _product(model, job, matrix, inputs, first, BLOCK, start, rows, sums)
            for row in range(start, start + rows):
                mine = sums + 4 * (row - start) * BLOCK
                _rescaled(model, matrix, first, BLOCK, mine, get(job.row_scales, row), out)
                x = job.x + 4 * (row * model.hidden + first)
                for i in range(BLOCK):
                    put(x, i, get(x, i) + get(out, i))
    wait(sync, threads)


@kernel
def _gates(sync, phase, threads, model, job, matrix, scratch):  # type: ignore[no-untyped-def]
    """silu(gate) * up, a block of outputs at a time, which holds as many gates as ups."""
    while True:
        block = claim(sync, phase)
        if block * HALF_BLOCK >= model.inner:
            break
        for start in range(0, job.rows, GROUP_ROWS):
            rows = min(GROUP_ROWS, job.rows - start)
            sums, out = scratch, scratch + 4 * GROUP_ROWS * BLOCK
            _product(model, job, matrix, model.hidden, block * BLOCK, BLOCK, start, rows, sums)
            for row in range(start, start + rows):
                mine = sums + 4 * (row - start) * BLOCK
                _rescaled(model, matrix, block * BLOCK, BLOCK, mine, get(job.row_scales, row), out)
                swiglu(out, out + 4 * HALF_BLOCK, HALF_BLOCK, job.inner + 4 * (row * model.inner + block * HALF_BLOCK))
    wait(sync, threads)


@kernel
def _leave(sync, phase, threads, model, job):  # type: ignore[no-untyped-def]
    """The last layer's output for a tap, and the rows that the LM head sees, normed and quantized."""
    while True:
        row = claim(sync, phase)
        if row >= job.rows + job.head_count:
            break
        if row < job.rows:
            _tap(model, job, model.layers, row)
        else:
            head = row - job.rows
            x = job.x + 4 * get_int(job.head_rows, head) * model.hidden
            scale = quantize(x, model.hidden, job.head_bytes + head * model.hidden)
            put(job.head_scales, head, scale * _norm_factor(model, x))
    wait(sync, threads)


@kernel
def _head(sync, phase, threads, model, job, thread, scratch):  # type: ignore[no-untyped-def]
    """Logits of some tokens for all rows at a time: written where they are asked for, else only the best is kept."""
    best, tokens = job.best + 4 * thread * job.head_count, job.tokens + 8 * thread * job.head_count
    if job.logits == 0:
        for head in range(job.head_count):
            put(best, head, np.float32(-np.inf))
            put_long(tokens, head, 0)
    while job.head_count:
        first = claim(sync, phase) * CHUNK
        if first >= model.vocab:
            break
        _head_chunk(model, job, first, best, tokens, scratch)
    wait(sync, threads)


@kernel
def _head_chunk(model, job, first, best, tokens, scratch):  # type: ignore[no-untyped-def]
    count, matrix = min(CHUNK, model.vocab - first), MATRICES * model.layers
    outputs = (count + BLOCK - 1) // BLOCK * BLOCK
    weight, sums, out = get_long(model.matrices, matrix) + first * model.hidden, scratch, scratch + 4 * GROUP_ROWS * CHUNK
    for start in range(0, job.head_count, GROUP_ROWS):
        rows, x = min(GROUP_ROWS, job.head_count - start), job.head_bytes + start * model.hidden
        products(x, model.hidden, rows, weight, model.hidden // 4, outputs, sums, 4 * outputs)
        for head in range(start, start + rows):
            mine, scale = sums + 4 * (head - start) * outputs, get(job.head_scales, head)
            if job.logits:
                logits = job.logits + 4 * (head * model.vocab + first)
                _rescaled(model, matrix, first, count, mine, scale, logits)
            else:
                _rescaled(model, matrix, first, count, mine, scale, out)
                heat, seed = get(job.heats, head), get_long(job.seeds, head)
                choose(out, count, first, heat, seed, get_long(job.positions, head), best, tokens, head)


@kernel
def _elect(threads, job):  # type: ignore[no-untyped-def]
    """The best of the threads' best, of equals the first token."""
    for head in range(job.head_count):
        for other in range(1, threads):
            place = other * job.head_count + head
            score, token, known = get(job.best, place), get_long(job.tokens, place), get(job.best, head)
            if score > known or (score == known and token < get_long(job.tokens, head)):
                put(job.best, head, score)
                put_long(job.tokens, head, token)
