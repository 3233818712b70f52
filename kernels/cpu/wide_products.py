"""Attention's products of 16-bit numbers (queries, and the weights of values): as two bytes, or as words on AVX2.

Where the processor has exact products of bytes, a row of 16-bit numbers is two rows of bytes. AVX2 has none, so there it is a
row of words, whose numbers are less by 32,768, because words have a sign. Both give the same integers, so results are
bit-identical.

The code is written in vectors of sixteen, because loops over addresses would check for overlaps at every call.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from kernels.cpu.emit import (
    F32,
    FLOATS,
    I8,
    INTEGERS,
    LANES,
    constant,
    fma,
    get_long,
    greater,
    intrinsic,
    joined,
    kernel,
    load,
    loop,
    magnitude,
    put_int,
    splat,
    store,
)
from kernels.cpu.int8_products import products, sums_of_pages
from kernels.cpu.job import PAGE
from kernels.cpu.processor import Variant
from kernels.cpu.word_products import word_scores, word_totals

_VECTORS = PAGE // LANES  # of a page


@intrinsic
def split_bytes(typing: Any, x: Any, step: Any, zero: Any, count: Any, high: Any, low: Any) -> Any:
    """The bytes of round(x[i] * step) + zero, which is 0 to 65,535; count: a multiple of 16. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, step, zero, count, high, low = arguments
        steps, bytes16 = splat(b, step), ir.VectorType(I8, LANES)
        rounding = splat(b, b.fadd(zero, F32(0.5)))
        eight = ir.Constant(INTEGERS, [8] * LANES)

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(LANES))
            exact = b.fadd(b.fmul(load(b, x, b.mul(at, constant(4))), steps), rounding)
            whole = b.fptosi(exact, INTEGERS)
            store(b, b.trunc(b.lshr(whole, eight), bytes16), high, at)
            store(b, b.trunc(whole, bytes16), low, at)
            return carried

        loop(b, b.sdiv(count, constant(LANES)), [], body)
        return context.get_dummy_value()

    word, number = types.intp, types.float32
    return types.void(word, number, number, word, word, word), codegen


@intrinsic
def split_pages(typing: Any, x: Any, step: Any, count: Any, high: Any, low: Any) -> Any:
    """The bytes of round(x[i] * step), which is 0 to 65,535, for 64 numbers of each of `count` pages. Addresses.

    Byte 4 i + j of a page is that of number i + 16 j, so that four vectors become one without moving lanes.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, step, count, high, low = arguments
        steps, half = splat(b, step), splat(b, F32(0.5))
        eight, sixteen = (ir.Constant(INTEGERS, [bits] * LANES) for bits in (8, 16))
        lows, highs = (ir.Constant(INTEGERS, [mask] * LANES) for mask in (0x00FF00FF, 0xFF00FF00))

        def body(index: Any, carried: list[Any]) -> list[Any]:
            first = b.add(x, b.mul(index, constant(4 * PAGE)))
            parts = [load(b, first, constant(4 * LANES * each)) for each in range(_VECTORS)]
            whole = [b.fptosi(fma(b, part, steps, half), INTEGERS) for part in parts]
            even, odd = (b.or_(whole[each], b.shl(whole[each + 2], sixteen)) for each in (0, 1))
            lower = b.or_(b.and_(even, lows), b.and_(b.shl(odd, eight), highs))
            upper = b.or_(b.and_(b.lshr(even, eight), lows), b.and_(odd, highs))
            at = b.mul(index, constant(PAGE))
            store(b, upper, high, at)
            store(b, lower, low, at)
            return carried

        loop(b, count, [], body)
        return context.get_dummy_value()

    word = types.intp
    return types.void(word, types.float32, word, word, word), codegen


@intrinsic
def join_scores(
    typing: Any, high: Any, low: Any, outputs: Any, offsets: Any, scales: Any, out: Any, stride: Any
) -> Any:
    """out[o, i] = (256 (high[o, i] - offsets[i]) + low[o, i]) * scales[i] for 64 positions, fp32 of int32; addresses.

    stride: of rows of `out`, in bytes; those of the sums lie side by side.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        high, low, outputs, offsets, scales, out, stride = arguments
        places = [constant(4 * LANES * each) for each in range(_VECTORS)]
        eight = ir.Constant(INTEGERS, [8] * LANES)
        lifted = [b.shl(load(b, offsets, place, kind=INTEGERS), eight) for place in places]
        factors = [load(b, scales, place) for place in places]

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at, to = b.mul(index, constant(4 * PAGE)), b.mul(index, stride)
            for place, offset, factor in zip(places, lifted, factors, strict=True):
                upper, lower = (load(b, each, at, place, kind=INTEGERS) for each in (high, low))
                whole = b.sub(b.add(b.shl(upper, eight), lower), offset)
                store(b, b.fmul(b.sitofp(whole, FLOATS), factor), out, to, place)
            return carried

        loop(b, outputs, [], body)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), codegen


@intrinsic
def join_sums(typing: Any, high: Any, low: Any, factor: Any, out: Any) -> Any:
    """out[i] = (256 high[i] + low[i]) * factor for 64 sums, the sum exact; returns the largest magnitude. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        high, low, factor, out = arguments
        doubles = ir.VectorType(ir.DoubleType(), LANES)
        factors, most = splat(b, factor), splat(b, F32(0.0))
        byte = ir.Constant(doubles, [256.0] * LANES)
        for index in range(_VECTORS):
            at = constant(4 * LANES * index)
            both = [b.sitofp(load(b, each, at, kind=INTEGERS), doubles) for each in (high, low)]
            total = b.fmul(b.fptrunc(b.fadd(b.fmul(both[0], byte), both[1]), FLOATS), factors)
            store(b, total, out, at)
            most = greater(b, magnitude(b, total), most)
        return joined(b, most, greater)

    word, number = types.intp, types.float32
    return number(word, word, number, word), codegen


_ZERO = 32768  # what a word stands for that is 0
_WORDS, _DOUBLES = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.DoubleType(), LANES)


@intrinsic
def split_words(typing: Any, x: Any, step: Any, count: Any, out: Any) -> Any:
    """round(x[i] * step), -32,768 to 32,767; count: a multiple of 16. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        x, step, count, out = arguments
        steps, rounding = splat(b, step), splat(b, F32(_ZERO + 0.5))
        zero = ir.Constant(INTEGERS, [_ZERO] * LANES)

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(LANES))
            exact = b.fadd(b.fmul(load(b, x, b.mul(at, constant(4))), steps), rounding)
            whole = b.sub(b.fptosi(exact, INTEGERS), zero)
            store(b, b.trunc(whole, _WORDS), out, b.mul(at, constant(2)))
            return carried

        loop(b, b.sdiv(count, constant(LANES)), [], body)
        return context.get_dummy_value()

    return types.void(types.intp, types.float32, types.intp, types.intp), codegen


@intrinsic
def split_page_words(typing: Any, x: Any, step: Any, count: Any, out: Any) -> Any:
    """round(x[i] * step) - 32,768, where the product is 0 to 65,535, for 64 numbers of each of `count` pages. Addresses.

    Word 4 i + j of a page is that of number i + 16 j, as in `split_pages`.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        x, step, count, out = arguments
        steps, half = splat(b, step), splat(b, F32(0.5))
        zero, sixteen, low = (ir.Constant(INTEGERS, [bits] * LANES) for bits in (_ZERO, 16, 0xFFFF))
        turns = ir.Constant(
            ir.VectorType(INTEGERS.element, 2 * LANES), [i + j for i in range(LANES) for j in (0, LANES)]
        )

        def body(index: Any, carried: list[Any]) -> list[Any]:
            first = b.add(x, b.mul(index, constant(4 * PAGE)))
            parts = [load(b, first, constant(4 * LANES * each)) for each in range(_VECTORS)]
            words = [b.sub(b.fptosi(fma(b, part, steps, half), INTEGERS), zero) for part in parts]
            pairs = [b.or_(b.and_(words[each], low), b.shl(words[each + 1], sixteen)) for each in (0, 2)]
            store(b, b.shuffle_vector(*pairs, turns), out, b.mul(index, constant(2 * PAGE)))
            return carried

        loop(b, count, [], body)
        return context.get_dummy_value()

    return types.void(types.intp, types.float32, types.intp, types.intp), codegen


@intrinsic
def join_totals(typing: Any, totals: Any, ones: Any, factor: Any, out: Any) -> Any:
    """out[i] = (totals[i] + 32,768 ones[i]) * factor for 64 totals, fp32 of fp64; returns the largest magnitude. Addresses.

    ones: totals of words that are all 1, which make up for what was taken from the others.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        totals, ones, factor, out = arguments
        factors, most = splat(b, factor), splat(b, F32(0.0))
        zero = ir.Constant(_DOUBLES, [float(_ZERO)] * LANES)
        for index in range(_VECTORS):
            total, one = (load(b, each, constant(8 * LANES * index), kind=_DOUBLES) for each in (totals, ones))
            whole = b.fmul(b.fptrunc(b.fadd(total, b.fmul(one, zero)), FLOATS), factors)
            store(b, whole, out, constant(4 * LANES * index))
            most = greater(b, magnitude(b, whole), most)
        return joined(b, most, greater)

    word, number = types.intp, types.float32
    return number(word, word, number, word), codegen


_ROW = 4 * PAGE  # bytes of a number for each position of a page
_WIDE_ROWS_ZERO = np.float32(
    32768.0
)  # of a query's 16 bits: 128 of the upper byte, which the offsets of keys take away again
_ONES = np.int32(0x00010001)  # two words


class WideRows(NamedTuple):
    """Kernels for the rows of some outputs, heads of queries, one after another; addresses, and strides in bytes.

    put_query(x, step, dim, rows, output, outputs): the row of an output: round(x * step), fp32 [dim], of at most 32,767.
    score(rows, outputs, dim, pages, plane, used, parts, scores, s_stride): scores [outputs, positions], fp32, of queries and
        the keys of pages, with the keys' scales.
    put_weights(x, step, used, rows, stride, output, outputs): the row of an output: round(x * step), up to 65,535, of each
        position of so many pages.
    mix(rows, stride, outputs, pages, used, plane, dim, parts, is_first): sums of values by these weights, into `parts`.
        is_first: of calls for the same pages.
    mixed(parts, output, outputs, dim, at, factor, out): 64 of an output's sums times a factor; returns the largest magnitude.
    """

    put_query: Any
    score: Any
    put_weights: Any
    mix: Any
    mixed: Any


def wide_rows_of(kind: Variant) -> WideRows:
    """The kernels for a kind of processor."""
    if kind == "avx2":
        return WideRows(_put_query_words, _score_words, _put_weight_words, _mix_words, _mixed_words)
    return WideRows(_put_query_bytes, _score_bytes, _put_weight_bytes, _mix_bytes, _mixed_bytes)


@kernel
def _put_query_bytes(query, step, dim, rows, output, outputs):  # type: ignore[no-untyped-def]
    high = types.intp(rows + output * dim)
    split_bytes(types.intp(query), step, _WIDE_ROWS_ZERO, types.intp(dim), high, types.intp(high + outputs * dim))


@kernel
def _score_bytes(rows, outputs, dim, pages, plane, used, parts, scores, s_stride):  # type: ignore[no-untyped-def]
    for page in range(used):
        keys, ahead = get_long(pages, page) + plane, get_long(pages, min(page + 1, used - 1)) + plane
        numbers = keys + 2 * PAGE * dim
        products(rows, dim, 2 * outputs, keys, dim // 4, PAGE, parts, _ROW, ahead)
        high, out = types.intp(parts), types.intp(scores + page * _ROW)
        join_scores(high, high + outputs * _ROW, outputs, numbers + _ROW, numbers, out, types.intp(s_stride))


@kernel
def _put_weight_bytes(weights, step, used, rows, stride, output, outputs):  # type: ignore[no-untyped-def]
    high = types.intp(rows + output * stride)
    split_pages(types.intp(weights), step, types.intp(used), high, types.intp(high + outputs * stride))


@kernel
def _mix_bytes(rows, stride, outputs, pages, used, plane, dim, parts, is_first):  # type: ignore[no-untyped-def]
    sums_of_pages(rows, stride, 2 * outputs, pages, used, plane, dim, parts, 4 * dim)


@kernel
def _mixed_bytes(parts, output, outputs, dim, at, factor, out):  # type: ignore[no-untyped-def]
    high = types.intp(parts + 4 * (output * dim + at))
    return join_sums(high, types.intp(high + 4 * outputs * dim), factor, types.intp(out))


@kernel
def _put_query_words(query, step, dim, rows, output, outputs):  # type: ignore[no-untyped-def]
    split_words(types.intp(query), step, types.intp(dim), types.intp(rows + 2 * output * dim))


@kernel
def _score_words(rows, outputs, dim, pages, plane, used, parts, scores, s_stride):  # type: ignore[no-untyped-def]
    for page in range(used):
        keys, ahead = get_long(pages, page) + plane, get_long(pages, min(page + 1, used - 1)) + plane
        scales = keys + 2 * PAGE * dim
        word_scores(rows, 2 * dim, outputs, keys, dim // 4, scales, scores + page * _ROW, s_stride, ahead)


@kernel
def _put_weight_words(weights, step, used, rows, stride, output, outputs):  # type: ignore[no-untyped-def]
    """After a row of words that are all 1."""
    split_page_words(types.intp(weights), step, types.intp(used), types.intp(rows + 2 * stride * (1 + output)))


@kernel
def _mix_words(rows, stride, outputs, pages, used, plane, dim, parts, is_first):  # type: ignore[no-untyped-def]
    known = 0 if is_first else 1
    if is_first:
        for i in range(used * PAGE // 2):
            put_int(rows, i, _ONES)
    word_totals(
        rows + 2 * stride * known,
        2 * stride,
        1 + outputs - known,
        pages,
        used,
        plane,
        dim,
        parts + 8 * dim * known,
    )


@kernel
def _mixed_words(parts, output, outputs, dim, at, factor, out):  # type: ignore[no-untyped-def]
    totals = types.intp(parts + 8 * (dim * (1 + output) + at))
    return join_totals(totals, types.intp(parts + 8 * at), factor, types.intp(out))
