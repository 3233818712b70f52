"""Phases of a forward around attention: queries, keys and values, and what they mix."""

import math

import numpy as np

from kernels.cpu.attention.int8_attention import attend_int8, write_key, write_value
from kernels.cpu.emit import LANES, get, get_int, get_long, kernel
from kernels.cpu.job import BLOCK, GROUP_ROWS, INNER, LINE, OUTPUTS, PAGE, STREAM, plane_bytes
from kernels.cpu.product_phases import product, rescaled, weights_after
from kernels.cpu.products.int8_products import prepare, release
from kernels.cpu.row_phases import epsilon, lanes_of_rows, norm, peak, rotate, row_scales
from kernels.cpu.threads import claim, claim_own, meet

_ONE = np.float32(1.0)
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
        _position(model, job, layer, 1, row, head, _ONE)
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
