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
    I32,
    I64,
    LANES,
    constant,
    greater,
    intrinsic,
    joined,
    load,
    loop,
    splat,
    store,
)
from kernels.cpu.job import PAGE

_INTEGERS = ir.VectorType(I32, LANES)
_LEAST = 1e-9  # products of numbers below fp32's normal range are slow, and what is smaller than this would not count


@intrinsic
def scale_weights(typing: Any, weights: Any, pages: Any, plane: Any, count: Any) -> Any:
    """weights[i] *= scales[i], fp32, not negative, and the largest of them: for the 64 positions of each of `count` pages,
    whose addresses are at `pages` and whose scales begin `plane` bytes into them.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        weights, pages, plane, count = arguments
        zero, least = splat(b, F32(0.0)), splat(b, F32(_LEAST))

        def body(index: Any, tops: list[Any]) -> list[Any]:
            scales = b.add(load(b, pages, b.mul(index, constant(8)), kind=I64), plane)
            first = b.add(weights, b.mul(index, constant(4 * PAGE)))
            for lane, top in enumerate(tops):
                at = constant(4 * LANES * lane)
                weight = load(b, first, at)
                product = b.fmul(weight, load(b, scales, at))
                kept = b.select(b.fcmp_ordered(">", weight, least), product, zero)
                store(b, kept, first, at)
                tops[lane] = greater(b, kept, top)
            return tops

        tops = loop(b, count, [zero] * (PAGE // LANES), body)
        for other in tops[1:]:
            tops[0] = greater(b, tops[0], other)
        return joined(b, tops[0], greater)

    return types.float32(*[types.intp] * 4), codegen


@intrinsic
def split_bytes(typing: Any, x: Any, step: Any, zero: Any, count: Any, high: Any, low: Any) -> Any:
    """The bytes of round(x[i] * step) + zero, which is 0 to 65,535; count: a multiple of 16. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, step, zero, count, high, low = arguments
        steps, bytes16 = splat(b, step), ir.VectorType(I8, LANES)
        rounding = splat(b, b.fadd(zero, F32(0.5)))
        eight = ir.Constant(_INTEGERS, [8] * LANES)

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(LANES))
            exact = b.fadd(b.fmul(load(b, x, b.mul(at, constant(4))), steps), rounding)
            whole = b.fptosi(exact, _INTEGERS)
            store(b, b.trunc(b.lshr(whole, eight), bytes16), high, at)
            store(b, b.trunc(whole, bytes16), low, at)
            return carried

        loop(b, b.sdiv(count, constant(LANES)), [], body)
        return context.get_dummy_value()

    word, number = types.intp, types.float32
    return types.void(word, number, number, word, word, word), codegen


@intrinsic
def join_scores(typing: Any, high: Any, low: Any, offsets: Any, scales: Any, factor: Any, count: Any, out: Any) -> Any:
    """out[i] = (256 (high[i] - offsets[i]) + low[i]) * (factor * scales[i]), fp32 of int32; addresses.

    count: a multiple of 16.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        high, low, offsets, scales, factor, count, out = arguments
        factors, byte = splat(b, factor), splat(b, F32(256.0))

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            upper = b.sub(load(b, high, at, kind=_INTEGERS), load(b, offsets, at, kind=_INTEGERS))
            lower = load(b, low, at, kind=_INTEGERS)
            whole = b.fadd(b.fmul(b.sitofp(upper, FLOATS), byte), b.sitofp(lower, FLOATS))
            store(b, b.fmul(whole, b.fmul(factors, load(b, scales, at))), out, at)
            return carried

        loop(b, b.sdiv(count, constant(LANES)), [], body)
        return context.get_dummy_value()

    word = types.intp
    return types.void(word, word, word, word, types.float32, word, word), codegen


@intrinsic
def join_sums(typing: Any, high: Any, low: Any, factor: Any, count: Any, out: Any) -> Any:
    """out[i] = (256 high[i] + low[i]) * factor, fp32 of int32; count: a multiple of 16. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        high, low, factor, count, out = arguments
        factors, byte = splat(b, factor), splat(b, F32(256.0))

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            both = [b.sitofp(load(b, each, at, kind=_INTEGERS), FLOATS) for each in (high, low)]
            store(b, b.fmul(b.fadd(b.fmul(both[0], byte), both[1]), factors), out, at)
            return carried

        loop(b, b.sdiv(count, constant(LANES)), [], body)
        return context.get_dummy_value()

    word = types.intp
    return types.void(word, word, types.float32, word, word), codegen
