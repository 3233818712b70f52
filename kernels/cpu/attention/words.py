"""Numbers of 16 bits as words, for products of words: attention's queries, and the weights of its values, on AVX2.

The same numbers as `two_bytes` has, less 32,768, because words have a sign.
"""

from typing import Any

from llvmlite import ir
from numba import types

from kernels.cpu.emit import (
    F32,
    FLOATS,
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

    Word 4 i + j of a page is that of number i + 16 j, as in `two_bytes.split_pages`.
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
