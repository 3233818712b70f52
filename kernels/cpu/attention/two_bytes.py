"""Numbers of 16 bits as two rows of bytes, for exact products of eight bits: attention's queries, and the weights of its
values.

Written as vectors of sixteen, because loops over addresses would check for overlaps at every call.
"""

from collections.abc import Sequence
from typing import Any

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
    greater,
    intrinsic,
    joined,
    load,
    loop,
    magnitude,
    splat,
    store,
)
from kernels.cpu.job import PAGE

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
