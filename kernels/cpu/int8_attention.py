"""Attention of draft trees over keys and values in eight bits, with exact integer products.

A page's part of one layer and head of keys holds 64 positions: keys packed as a weight of `int8_products` with positions
as outputs [64, dim], values as one with positions as inputs [dim, 64], in the order of `split_pages`, and three numbers
of each position: the key's scale, 128 times the sum of its integers, the value's scale. Queries and keys get a Hadamard
transform first, which leaves their products as they are and spreads what sticks out (QuaRot, arXiv 2404.00456). Queries
and the weights of values take 16 bits (`wide_products`): many small weights add up (SageAttention, arXiv
2410.02367, keeps them in fp16), and a query's rounding would shift all scores of a row.

Integers have no order, and `weigh` sums in that of a chain, so a row is the same to the bit in a chain, in any tree, with
any part of it cached, and on every processor.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.blocks import key_bytes, turned, value_bytes
from kernels.cpu.emit import get, get_int, kernel, largest_magnitude, put, put_int
from kernels.cpu.int8_products import prepare, release
from kernels.cpu.job import OUTPUTS, PAGE, weight_stride
from kernels.cpu.processor import Variant, variant
from kernels.cpu.quantize import POINTS, hadamard_reference, quantize_reference
from kernels.cpu.tree_attention import attend_reference, weigh
from kernels.cpu.wide_products import wide_rows_of

_ROW = 4 * PAGE  # bytes of a number for each position of a page
_BYTE, _MOST, _MOST_QUERY, _TINY = (np.float32(number) for number in (127.0, 65535.0, 127 * 256, 1e-30))

_weight_stride = kernel(weight_stride)
Floats = npt.NDArray[np.float32]


@kernel
def write_key(key, dim, room, plane, at):  # type: ignore[no-untyped-def]
    """Put a rotated key, fp32 [dim], which is overwritten, at a position of a page. room: 64 bytes. Addresses."""
    numbers, place = plane + 2 * PAGE * dim, at // 16 * (dim // 4) * 16 + at % 16
    top, total = _turned(key, dim), 0
    for first in range(0, dim, POINTS):
        total += key_bytes(types.intp(key + 4 * first), _BYTE / top, types.intp(room))
        for step in range(POINTS // 4):
            put_int(plane, place + 16 * (first // 4 + step), get_int(room, step))
    put(numbers, at, top / _BYTE)
    put_int(numbers + _ROW, at, np.int32(128 * total))


@kernel
def _turned(x, dim):  # type: ignore[no-untyped-def]
    """The Hadamard transform of each 64 floats, times 8, in place; returns the largest magnitude, which is not 0."""
    top = _TINY
    for first in range(0, dim, POINTS):
        top = max(top, turned(types.intp(x + 4 * first)))
    return top


@kernel
def write_value(value, dim, plane, at):  # type: ignore[no-untyped-def]
    """Put a value, fp32 [dim], at a position of a page. Addresses."""
    top, values = max(largest_magnitude(value, dim), _TINY), plane + PAGE * dim + at % 16 * 64
    for first in range(0, dim, 16):
        line = values + first * PAGE
        value_bytes(types.intp(value + 4 * first), _BYTE / top, types.intp(line), types.intp(8 * (at // 16)))
    put(plane + 2 * PAGE * dim + 2 * _ROW, at, top / _BYTE)


def attend_of(kind: Variant) -> Any:
    """`attend_int8` for a kind of processor, which gives the same on all of them:

    `heads` query heads that share keys, for the rows [first, stop) of a sequence; addresses, strides in bytes.

    queries: rows of [heads, dim], `stride` apart, rotated and times log2(e) / (64 sqrt(dim)); overwritten. pages: addresses
    (int64) of the sequence's pages; plane: how far into a page the keys of this layer and head begin. before: positions
    cached. own [stop, ...], int32: for each row its ancestors' rows and itself, ascending; 0: a chain. counts [stop], int32:
    how many those are. scores, sums: room for [16, positions of whole pages] and for 32 + stop floats; room: see
    `kernels.cpu.job.attention_room`, at a line of the cache. mixed: the result, rows as those of queries. peaks: the largest
    magnitudes of its blocks of 64, rows side by side, `p_stride` from block to block.
    """
    put_query, score, put_weights, mix, mixed_block = wide_rows_of(kind)

    @kernel
    def attend(  # type: ignore[no-untyped-def]
        queries,
        heads,
        dim,
        pages,
        plane,
        before,
        first,
        stop,
        own,
        own_stride,
        counts,
        scores,
        s_stride,
        sums,
        mixed,
        room,
        stride,
        peaks,
        p_stride,
    ):
        limit, outputs = before + stop, (stop - first) * heads
        used, most_rows = (limit + PAGE - 1) // PAGE, OUTPUTS + 1
        parts, inputs = room, room + 8 * most_rows * max(dim, PAGE)
        weights, w_stride = inputs + 2 * most_rows * dim, _weight_stride(limit)
        ready = 0
        for start in range(0, outputs, OUTPUTS):
            some = min(OUTPUTS, outputs - start)
            ready = prepare(2 * some, ready)  # both bytes of so many are the rows of one product
            for output in range(some):
                row, head = (start + output) // heads, (start + output) % heads
                query = queries + row * stride + 4 * head * dim
                top = _turned(query, dim)
                put_query(query, _MOST_QUERY / top, dim, inputs, output, some)
                put(sums, output, top / _MOST_QUERY)
            score(inputs, some, dim, pages, plane, used, parts, scores, s_stride)
            for output in range(some):
                row = first + (start + output) // heads
                ancestors = own + row * own_stride if own else 0
                total, mine = before + get_int(counts, row), scores + output * s_stride
                scales = plane + 2 * PAGE * dim + 2 * _ROW
                weight, most = weigh(
                    mine, get(sums, output), before, total, used, ancestors, pages, scales, sums + 4 * OUTPUTS
                )
                put_weights(mine, _MOST / max(most, _TINY), used, weights, w_stride, output, some)
                put(sums, output, max(most, _TINY) / _MOST / weight)
            mix(weights, w_stride, some, pages, used, plane + PAGE * dim, dim, parts, start == 0)
            for output in range(some):
                row, head = (start + output) // heads, (start + output) % heads
                for at in range(0, dim, PAGE):
                    out = mixed + row * stride + 4 * (head * dim + at)
                    top = mixed_block(parts, output, some, dim, at, get(sums, output), out)
                    put(peaks + 4 * row + (head * dim + at) // PAGE * p_stride, 0, top)
        release()

    return attend


attend_int8 = attend_of(variant() or "generic")


def attend_int8_reference(
    queries: Floats, keys: Floats, values: Floats, before: int, seen: npt.NDArray[np.bool_]
) -> Floats:
    """queries [rows, heads, dim], scaled for base 2; keys, values [before + rows, dim]; seen [rows, rows].

    In fp64 after the rounding of keys and values, without that of queries and weights.
    """
    return attend_reference(_transformed(queries), _rounded(_transformed(keys)), _rounded(values), before, seen)


def _transformed(x: Floats) -> Floats:
    """The orthonormal transform of each 64 numbers of rows [..., dim]."""
    return hadamard_reference(x.reshape(-1, POINTS)).reshape(x.shape)


def _rounded(x: Floats) -> Floats:
    integers, scales = quantize_reference(x.reshape(-1, x.shape[-1]))
    rounded: Floats = ((integers.astype(np.float32) - 128) * scales[:, None]).reshape(x.shape)
    return rounded
