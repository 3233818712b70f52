"""Attention of draft trees over keys and values in eight bits, with exact integer products.

A page's part of one layer and head of keys holds 64 positions: keys packed as a weight of `int8_products` with positions
as outputs [64, dim], values as one with positions as inputs [dim, 64], and three numbers of each position: the key's
scale, 128 times the sum of its integers, the value's scale. Queries and keys get a Hadamard transform first, which
leaves their products as they are and spreads what sticks out (QuaRot, arXiv 2404.00456). Queries and the weights of
values take 16 bits, as two products of eight: many small weights add up (SageAttention, arXiv 2410.02367, keeps them in
fp16), and a query's rounding would shift all scores of a row.

Integers have no order, and `softmax` sums in that of a chain, so a row is the same to the bit in a chain, in any tree, with
any part of it cached, and on every processor.
"""

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.emit import get, get_byte, get_int, get_long, kernel, largest_magnitude, put, put_byte, put_int
from kernels.cpu.job import OUTPUTS, PAGE, weight_stride
from kernels.cpu.products.int8_products import prepare, products, release, sums_of_pages
from kernels.cpu.quantize import POINTS, hadamard_64, hadamard_reference, quantize, quantize_reference
from kernels.cpu.tree_attention import attend_reference, softmax
from kernels.cpu.two_bytes import join_scores, join_sums, scale_weights, split_bytes

_ROW = 4 * PAGE  # bytes of a number for each position of a page
_SIGN, _SIGNS = np.uint8(0x80), np.int32(-0x7F7F7F80)  # of one byte, and of four
_MOST, _MOST_QUERY, _TINY = np.float32(65535.0), np.float32(127 * 256), np.float32(1e-30)
_ZERO = np.float32(32768.0)  # of a query's 16 bits: 128 of the upper byte, which the offsets of keys take away again

_weight_stride = kernel(weight_stride)
Floats = npt.NDArray[np.float32]


@kernel
def write_key(key, dim, room, plane, at):  # type: ignore[no-untyped-def]
    """Put a rotated key, fp32 [dim], which is overwritten, at a position of a page. room: dim bytes. Addresses."""
    transform(key, dim)
    scale = quantize(key, dim, room)
    first, numbers, total = (at // 16 * (dim // 4)) * 16 + at % 16, plane + 2 * PAGE * dim, 0
    for step in range(dim // 4):
        put_int(plane, first + 16 * step, get_int(room, step) ^ _SIGNS)
    for i in range(dim):
        total += get_byte(room, i) - 128
    put(numbers, at, scale)
    put_int(numbers + _ROW, at, np.int32(128 * total))


@kernel
def write_value(value, dim, room, plane, at):  # type: ignore[no-untyped-def]
    """Put a value, fp32 [dim], at a position of a page. room: dim bytes. Addresses."""
    scale, values = quantize(value, dim, room), plane + PAGE * dim
    for i in range(dim):
        put_byte(values, (i // 16 * (PAGE // 4) + at // 4) * 64 + i % 16 * 4 + at % 4, get_byte(room, i) ^ _SIGN)
    put(plane + 2 * PAGE * dim + 2 * _ROW, at, scale)


@kernel
def transform(x, dim):  # type: ignore[no-untyped-def]
    """The Hadamard transform of each 64 floats, times 8, in place."""
    for first in range(0, dim, POINTS):
        hadamard_64(types.intp(x + 4 * first))


@kernel
def attend_int8(  # type: ignore[no-untyped-def]
    queries, heads, dim, pages, plane, before, first, stop, own, own_stride, counts, scores, s_stride, sums, mixed, room
):
    """`heads` query heads that share keys, for the rows [first, stop) of a sequence; addresses, strides in bytes.

    queries [rows, heads, dim], rotated and times log2(e) / (64 sqrt(dim)); overwritten. pages: addresses (int64) of the
    sequence's pages; plane: how far into a page the keys of this layer and head begin. before: positions cached. own [stop,
    ...], int32: for each row its ancestors' rows and itself, ascending; 0: a chain. counts [stop], int32: how many those are.
    scores, sums: room for [16, positions of whole pages] and for 16 + stop floats; room: see
    `kernels.cpu.job.attention_room`, at a line of the cache. mixed [rows, heads, dim]: the result.
    """
    limit, outputs = before + stop, (stop - first) * heads
    used = (limit + PAGE - 1) // PAGE
    parts, inputs = room, room + 8 * OUTPUTS * max(dim, PAGE)
    weights, w_stride = inputs + 2 * OUTPUTS * dim, _weight_stride(limit)
    ready = 0
    for start in range(0, outputs, OUTPUTS):  # both bytes of so many are the rows of one product
        some = min(OUTPUTS, outputs - start)
        ready = prepare(2 * some, ready)
        _score(queries + 4 * start * dim, some, dim, pages, plane, used, inputs, parts, scores, s_stride, sums)
        for output in range(some):
            row = first + (start + output) // heads
            ancestors = own + row * own_stride if own else 0
            total, mine = before + get_int(counts, row), scores + output * s_stride
            weight = softmax(mine, before, total, used * PAGE, ancestors, sums + 4 * OUTPUTS)
            high = weights + output * w_stride
            scale = _quantize_weights(mine, pages, plane + 2 * PAGE * dim, used, high, high + some * w_stride)
            put(sums, output, scale / weight)
        sums_of_pages(weights, w_stride, 2 * some, pages, used, plane + PAGE * dim, dim, parts, 4 * dim)
        for output in range(some):
            high, out = parts + 4 * output * dim, mixed + 4 * (start + output) * dim
            join_sums(types.intp(high), types.intp(high + 4 * some * dim), get(sums, output), dim, types.intp(out))
    release()


@kernel
def _score(queries, outputs, dim, pages, plane, used, inputs, parts, scores, s_stride, scales):  # type: ignore[no-untyped-def]
    """scores [outputs, positions] of queries, whose bytes go to `inputs`, and their scales to `scales`. parts: room for two
    integers for each output and position of a page.
    """
    lows = inputs + outputs * dim
    for output in range(outputs):
        query, high, low = queries + 4 * output * dim, inputs + output * dim, lows + output * dim
        transform(query, dim)
        top = max(largest_magnitude(query, dim), _TINY)
        split_bytes(types.intp(query), _MOST_QUERY / top, _ZERO, dim, types.intp(high), types.intp(low))
        put(scales, output, top / _MOST_QUERY)
    for page in range(used):
        keys, ahead = get_long(pages, page) + plane, get_long(pages, min(page + 1, used - 1)) + plane
        numbers = keys + 2 * PAGE * dim
        products(inputs, dim, 2 * outputs, keys, dim // 4, PAGE, parts, _ROW, ahead)
        for output in range(outputs):
            high, out = types.intp(parts + output * _ROW), types.intp(scores + page * _ROW + output * s_stride)
            join_scores(high, high + outputs * _ROW, numbers + _ROW, numbers, get(scales, output), PAGE, out)


@kernel
def _quantize_weights(weights, pages, numbers, used, high, low):  # type: ignore[no-untyped-def]
    """Two bytes for each position's weight times its value's scale; returns the scale of their integers. Weights are
    overwritten.
    """
    plane = types.intp(numbers + 2 * _ROW)
    top = max(scale_weights(types.intp(weights), types.intp(pages), plane, types.intp(used)), _TINY)
    split_bytes(types.intp(weights), _MOST / top, np.float32(0.0), used * PAGE, types.intp(high), types.intp(low))
    return top / _MOST


def attend_int8_reference(
    queries: Floats, keys: Floats, values: Floats, before: int, seen: npt.NDArray[np.bool_]
) -> Floats:
    """queries [rows, heads, dim], scaled for base 2; keys, values [before + rows, dim]; seen [rows, rows].

    In fp64 behind the rounding of keys and values, without that of queries and weights.
    """
    return attend_reference(_transformed(queries), _rounded(_transformed(keys)), _rounded(values), before, seen)


def _transformed(x: Floats) -> Floats:
    """The orthonormal transform of each 64 numbers of rows [..., dim]."""
    return hadamard_reference(x.reshape(-1, POINTS)).reshape(x.shape)


def _rounded(x: Floats) -> Floats:
    integers, scales = quantize_reference(x.reshape(-1, x.shape[-1]))
    rounded: Floats = ((integers.astype(np.float32) - 128) * scales[:, None]).reshape(x.shape)
    return rounded
