"""Attention of draft trees over the keys and values of a sequence: a row sees all that was cached, and its ancestors.

Keys and values lie in pages of 64 positions. A page's part of one layer and head is keys [dim, 64], so that a score's
sum runs over dim while positions fill the vectors, and then values [64, dim]. A draft's rows lie after what is cached
in the order in which they were fed. A row's scores are moved to where they would stand in a chain before anything is summed
over positions, and what it mixes comes in the same order: a row is the same to the bit in a chain, in any tree, and with any
part of it cached.

Scores become the weights of eight-bit values, powers of two times the scales of the values, in few passes: sixteen numbers at a
time are raised, summed, scaled and compared at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from kernels.cpu.emit import (
    F32,
    FLOATS,
    I64,
    LANES,
    constant,
    fma,
    get,
    get_int,
    get_long,
    greater,
    intrinsic,
    joined,
    kernel,
    largest,
    load,
    loop,
    plus,
    put,
    splat,
    store,
)
from kernels.cpu.job import PAGE
from kernels.cpu.swiglu import exponentials, power_of_two
from kernels.cpu.weighted_sums import weighted_sums

_LEAST = -60.0  # exponents of weights; what is smaller counts for nothing, and its products would be slow
_VECTORS = PAGE // LANES  # of a page
_ZERO, _NEVER = np.float32(0.0), np.float32(-np.inf)


def _power(b: Any, value: Any, factor: Any, top: Any) -> Any:
    return power_of_two(b, fma(b, value, factor, b.fneg(top)), _LEAST)


def _scales(b: Any, pages: Any, plane: Any, index: Any) -> Any:
    """The scales of the positions of a vector, which lie `plane` bytes into their page."""
    page = load(b, pages, b.mul(b.lshr(index, constant(2)), constant(8)), kind=I64)
    return load(b, page, plane, b.mul(b.and_(index, constant(_VECTORS - 1)), constant(4 * LANES)))


@intrinsic
def _weigh_cached(typing: Any, x: Any, count: Any, factor: Any, top: Any, pages: Any, plane: Any, sums: Any) -> Any:
    """x[i] = w * scales[i], where w = 2^(x[i] factor - top), for `count` vectors; returns the largest.

    sums: fp32 [16], becomes the sums of w lane by lane. Addresses.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, count, factor, top, pages, plane, sums = arguments
        factors, tops, zero = splat(b, factor), splat(b, top), splat(b, F32(0.0))

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            weight = _power(b, load(b, x, at), factors, tops)
            product = b.fmul(weight, _scales(b, pages, plane, index))
            store(b, product, x, at)
            return [b.fadd(carried[0], weight), greater(b, product, carried[1])]

        lanes, most = loop(b, count, [zero, zero], body)
        store(b, lanes, sums)
        return joined(b, most, greater)

    word, number = types.intp, types.float32
    return number(word, word, number, number, word, word, word), codegen


@intrinsic
def _weigh_rest(typing: Any, x: Any, count: Any, factor: Any, top: Any, sums: Any) -> Any:
    """x[i] = 2^(x[i] factor - top), 0 where x is -inf, for `count` vectors; returns their sum with `sums`, fp32 [16].

    Lane by lane, then the lanes in halves. Addresses.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, count, factor, top, sums = arguments
        factors, tops, zero = splat(b, factor), splat(b, top), splat(b, F32(0.0))
        nothing = splat(b, F32(float("-inf")))

        def body(index: Any, lanes: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            value = load(b, x, at)
            weight = b.select(b.fcmp_ordered(">", value, nothing), _power(b, value, factors, tops), zero)
            store(b, weight, x, at)
            return [b.fadd(lanes[0], weight)]

        (lanes,) = loop(b, count, [load(b, sums)], body)
        return joined(b, lanes, plus)

    word, number = types.intp, types.float32
    return number(word, word, number, number, word), codegen


@intrinsic
def _scale(typing: Any, x: Any, first: Any, stop: Any, pages: Any, plane: Any) -> Any:
    """x[i] *= scales[i] for the vectors from `first` on and before `stop`; returns the largest. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, first, stop, pages, plane = arguments

        def body(index: Any, carried: list[Any]) -> list[Any]:
            index = b.add(first, index)
            at = b.mul(index, constant(4 * LANES))
            product = b.fmul(load(b, x, at), _scales(b, pages, plane, index))
            store(b, product, x, at)
            return [greater(b, product, carried[0])]

        (most,) = loop(b, b.sub(stop, first), [ir.Constant(FLOATS, [0.0] * LANES)], body)
        return joined(b, most, greater)

    return types.float32(*[types.intp] * 5), codegen


@kernel
def weigh(scores, factor, before, total, used, ancestors, pages, plane, room):  # type: ignore[no-untyped-def]
    """Scores of a row over `used` pages become 2^(factor score) times the values' scales, 0 where it does not see, relative to
    the largest score; returns the sum of weights without scales, and the largest weight with its scale.

    factor: positive. total: positions that it sees, `before` of them cached. ancestors: its own rows, 0 for a chain. pages:
    addresses of pages; plane: how far into one the scales begin. room: for 16 floats and one for each own row. Addresses.
    """
    cached = before // LANES
    if ancestors:
        gather(scores, before, total, ancestors)
    seen, limit = (total + LANES - 1) // LANES, used * PAGE
    fill(scores, total, seen * LANES, _NEVER)
    x, rest = types.intp(scores), types.intp(scores + 4 * cached * LANES)
    top = largest(scores, seen * LANES) * factor
    sums, places, scales = types.intp(room), types.intp(pages), types.intp(plane)
    most = _weigh_cached(x, types.intp(cached), factor, top, places, scales, sums)
    weight = _weigh_rest(rest, types.intp(seen - cached), factor, top, sums)
    fill(scores, seen * LANES, limit, _ZERO)
    if ancestors:
        scatter(scores, before, total, ancestors, room + 4 * LANES)
    return weight, max(most, _scale(x, types.intp(cached), types.intp(limit // LANES), places, scales))


@kernel
def gather(scores, before, total, ancestors):  # type: ignore[no-untyped-def]
    """Move a row's own positions to where they would stand in a chain: those from `before` on and before `total`."""
    for i in range(before, total):
        put(scores, i, get(scores, before + get_int(ancestors, i - before)))


@kernel
def scatter(weights, before, total, ancestors, room):  # type: ignore[no-untyped-def]
    """Move them back, and leave 0 at positions that are not the row's. room: for as many floats."""
    for i in range(before, total):
        put(room, i - before, get(weights, i))
    fill(weights, before, total, _ZERO)
    for i in range(total - before):
        put(weights, before + get_int(ancestors, i), get(room, i))


@kernel
def fill(x, first, stop, value):  # type: ignore[no-untyped-def]
    """x[first:stop] = value, fp32; an address."""
    for i in range(first, stop):
        put(x, i, value)


_TREE_ATTENTION_ZERO, _ONE, _TREE_ATTENTION_NEVER = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)
_ROW_BYTES = 4 * PAGE


@kernel
def attend(  # type: ignore[no-untyped-def]
    queries, heads, dim, pages, plane, before, first, stop, own, own_stride, counts, scores, s_stride, sums, mixed
):
    """`heads` query heads that share keys, for the rows [first, stop) of a sequence; addresses, strides in bytes.

    queries [rows, heads, dim], rotated and times log2(e) / sqrt(dim). pages: addresses (int64) of the sequence's pages;
    plane: how far into a page the keys of this layer and head begin. before: positions cached. own [stop, ...], int32:
    for each row its ancestors' rows and itself, ascending; 0: a chain. counts [stop], int32: how many those are.
    scores, sums: room for [rows x heads, positions] and for rows x heads + stop floats. mixed [rows, heads, dim]: the
    result.
    """
    limit, outputs = before + stop, (stop - first) * heads
    pages_used = (limit + PAGE - 1) // PAGE
    ahead = get_long(pages, 0) + plane
    for page in range(pages_used):
        keys, ahead = ahead, _ahead(pages, page, pages_used, plane, dim)
        weighted_sums(
            queries, 4 * dim, outputs, keys, _ROW_BYTES, dim, scores + page * _ROW_BYTES, s_stride, PAGE, False, ahead
        )
    for output in range(outputs):
        row = first + output // heads
        ancestors = own + row * own_stride if own else 0
        total = before + get_int(counts, row)
        weight = softmax(scores + output * s_stride, before, total, limit, ancestors, sums + 4 * outputs)
        put(sums, output, np.float32(1.0) / weight)
    for page in range(pages_used):
        values, ahead = ahead, _ahead(pages, page, pages_used, plane + _ROW_BYTES * dim, dim)
        weights, some = scores + page * _ROW_BYTES, min(PAGE, limit - page * PAGE)
        weighted_sums(weights, s_stride, outputs, values, 4 * dim, some, mixed, 4 * dim, dim, page > 0, ahead)
    for output in range(outputs):
        share = get(sums, output)
        for i in range(output * dim, (output + 1) * dim):
            put(mixed, i, get(mixed, i) * share)


@kernel
def _ahead(pages, page, count, plane, dim):  # type: ignore[no-untyped-def]
    """What is read after a page's keys or values, which begin `plane` into it: the next page's, or the first page's values."""
    return get_long(pages, page + 1) + plane if page + 1 < count else get_long(pages, 0) + plane + _ROW_BYTES * dim


@kernel
def softmax(scores, before, total, limit, ancestors, compact):  # type: ignore[no-untyped-def]
    """Scores of a row over `limit` positions become weights, 0 where it does not see; returns their sum.

    total: positions that it sees, `before` of them cached. ancestors: its own rows, 0 for a chain.
    """
    if ancestors:
        gather(scores, before, total, ancestors)
    padded = (total + LANES - 1) // LANES * LANES
    fill(scores, total, padded, _TREE_ATTENTION_NEVER)
    top = largest(scores, padded)
    place = types.intp(scores)
    weight = exponentials(place, padded, top, _ONE, place)
    fill(scores, padded, limit, _TREE_ATTENTION_ZERO)
    if ancestors:
        scatter(scores, before, total, ancestors, compact)
    return weight


Floats = npt.NDArray[np.float32]


def attend_reference(queries: Floats, keys: Floats, values: Floats, before: int, seen: Any) -> Floats:
    """queries [rows, heads, dim], scaled for base 2; keys, values [before + rows, dim]; seen [rows, rows], bool.

    In fp64, without the kernel's order.
    """
    visible = np.concatenate([np.ones((len(queries), before), bool), np.asarray(seen, bool)], 1)
    scores = np.einsum("rhd,pd->rhp", queries.astype(np.float64), keys.astype(np.float64))
    scores = np.where(visible[:, None], scores, -np.inf)
    weights = np.exp2(scores - scores.max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    out: Floats = np.einsum("rhp,pd->rhd", weights, values.astype(np.float64)).astype(np.float32)
    return out
