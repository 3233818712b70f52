"""What is done to 64 columns of a row while they are in registers: they are added, gated, turned, measured, quantized.

A block's columns belong to the thread whose products made them, so a row's numbers hardly travel between processors. What
a row is quantized with depends on all of its blocks: each leaves its largest magnitude, and in the stream its sum of
squares, and the blocks are joined in their order.
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
    plus,
    splat,
    store,
)
from kernels.cpu.job import BLOCK
from kernels.cpu.quantize import transformed
from kernels.cpu.swiglu import silu_of

_PLACES = [constant(4 * at) for at in range(0, BLOCK, LANES)]
_FLOAT, _WORD = types.float32, types.intp
_BYTES = ir.VectorType(I8, LANES)


def _measure(b: Any, vectors: Sequence[Any], top: Any, squares: Any) -> None:
    """Store the largest magnitude and the sum of squares, lane by lane, then the lanes in halves."""
    most, total = (ir.Constant(FLOATS, [0.0] * LANES) for _ in range(2))
    for vector in vectors:
        most, total = greater(b, magnitude(b, vector), most), fma(b, vector, vector, total)
    store(b, joined(b, most, greater), top)
    store(b, joined(b, total, plus), squares)


def _turned(b: Any, vectors: Sequence[Any], out: Any) -> Any:
    """Store the Hadamard transform of four vectors, times 8; returns the largest magnitude."""
    most = ir.Constant(FLOATS, [0.0] * LANES)
    for place, vector in zip(_PLACES, transformed(b, vectors), strict=True):
        store(b, vector, out, place)
        most = greater(b, magnitude(b, vector), most)
    return joined(b, most, greater)


def _rounded(b: Any, x: Any, steps: Any) -> Any:
    """round(x * steps) + 128 as `quantize` takes it."""
    return b.fptosi(b.fadd(b.fmul(x, steps), splat(b, F32(128.5))), INTEGERS)


def _signed(b: Any, x: Any, steps: Any) -> Any:
    """The same without the 128."""
    return b.sub(_rounded(b, x, steps), ir.Constant(INTEGERS, [128] * LANES))


@intrinsic
def measured(typing: Any, x: Any, top: Any, squares: Any) -> Any:
    """Measure 64 floats: where the largest magnitude and the sum of squares go. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, top, squares = arguments
        _measure(b, [load(b, x, place) for place in _PLACES], top, squares)
        return context.get_dummy_value()

    return types.void(_WORD, _WORD, _WORD), codegen


@intrinsic
def added(typing: Any, x: Any, more: Any, top: Any, squares: Any) -> Any:
    """x += more for 64 floats, which are measured. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, more, top, squares = arguments
        sums = [b.fadd(load(b, x, place), load(b, more, place)) for place in _PLACES]
        for place, vector in zip(_PLACES, sums, strict=True):
            store(b, vector, x, place)
        _measure(b, sums, top, squares)
        return context.get_dummy_value()

    return types.void(_WORD, _WORD, _WORD, _WORD), codegen


@intrinsic
def gated(typing: Any, gates: Any, ups: Any, out: Any, top: Any) -> Any:
    """The Hadamard transform of silu(gates) * ups, 64 floats, times 8, and its largest magnitude. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        gates, ups, out, top = arguments
        inner = [b.fmul(silu_of(b, load(b, gates, place)), load(b, ups, place)) for place in _PLACES]
        store(b, _turned(b, inner, out), top)
        return context.get_dummy_value()

    return types.void(_WORD, _WORD, _WORD, _WORD), codegen


@intrinsic
def quantized(typing: Any, x: Any, step: Any, out: Any) -> Any:
    """out[i] = round(x[i] step) + 128 for 64 floats, as `quantize` does. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, step, out = arguments
        steps = splat(b, step)
        for index, place in enumerate(_PLACES):
            store(b, b.trunc(_rounded(b, load(b, x, place), steps), _BYTES), out, constant(LANES * index))
        return context.get_dummy_value()

    return types.void(_WORD, _FLOAT, _WORD), codegen


@intrinsic
def turned(typing: Any, x: Any) -> Any:
    """The Hadamard transform of 64 floats, times 8, in place; returns the largest magnitude. An address."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        (x,) = arguments
        return _turned(b, [load(b, x, place) for place in _PLACES], x)

    return _FLOAT(_WORD), codegen


@intrinsic
def key_bytes(typing: Any, x: Any, step: Any, out: Any) -> Any:
    """out[i] = round(x[i] step) for 64 floats, signed bytes; returns their sum. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, step, out = arguments
        steps, total = splat(b, step), ir.Constant(INTEGERS, [0] * LANES)
        for index, place in enumerate(_PLACES):
            whole = _signed(b, load(b, x, place), steps)
            total = b.add(total, whole)
            store(b, b.trunc(whole, _BYTES), out, constant(LANES * index))
        return b.sext(joined(b, total, lambda b, x, y: b.add(x, y)), I64)

    return _WORD(_WORD, _FLOAT, _WORD), codegen


@intrinsic
def value_bytes(typing: Any, x: Any, step: Any, line: Any, shift: Any) -> Any:
    """round(x[i] step) of sixteen floats, signed, becomes the byte of the line's i-th integer that begins at bit `shift`.

    Addresses.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, step, line, shift = arguments
        shifts, byte = splat(b, b.trunc(shift, I32)), ir.Constant(INTEGERS, [0xFF] * LANES)
        whole = b.and_(_signed(b, load(b, x), splat(b, step)), byte)
        others = b.and_(load(b, line, kind=INTEGERS), b.not_(b.shl(byte, shifts)))
        store(b, b.or_(others, b.shl(whole, shifts)), line)
        return context.get_dummy_value()

    return types.void(_WORD, _FLOAT, _WORD, _WORD), codegen


def _over_blocks(join: Any) -> Any:
    """(x, stride, count, out): sixteen rows' numbers of `count` blocks, `stride` bytes apart, joined in their order."""

    @intrinsic
    def over(typing: Any, x: Any, stride: Any, count: Any, out: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            x, stride, count, out = arguments

            def body(index: Any, carried: list[Any]) -> list[Any]:
                return [join(b, load(b, x, b.mul(index, stride)), carried[0])]

            (lanes,) = loop(b, count, [ir.Constant(FLOATS, [0.0] * LANES)], body)
            store(b, lanes, out)
            return context.get_dummy_value()

        return types.void(_WORD, _WORD, _WORD, _WORD), codegen

    return over


largest_of_blocks, sums_of_blocks = _over_blocks(greater), _over_blocks(plus)
