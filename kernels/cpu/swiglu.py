"""silu(gate) * up, and the exponential of it and of attention: a polynomial, the same on every processor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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
    kernel,
    load,
    loop,
    magnitude,
    multiply_add,
    plus,
    splat,
    store,
    times_power_of_two,
)

_LN2 = 0.6931471805599453
# Of the polynomial 1 + C1 f + ... + C5 f^5 whose largest relative error from 2^f for |f| <= 1/2 is the least, 9.2e-8.
C5, C4, C3, C2, C1 = (np.float32(c) for c in (0.00132647273, 0.00967151299, 0.0555073359, 0.240222424, 0.693147004))
_LEAST = np.float32(-125.0)
_ROUNDING = np.float32(1.5 * 2**23)  # what is added to it has its whole number in the lowest bits
_LOG2E, _ONE, _ZERO = np.float32(1 / _LN2), np.float32(1.0), np.float32(0.0)


@kernel(inline="always")
def exp2(x):  # type: ignore[no-untyped-def]
    """2^x for x <= 0 in fp32, within 2e-7 of itself; for x < -125, 2^-125."""
    y = x if x > _LEAST else _LEAST
    n = (y + _ROUNDING) - _ROUNDING
    f = y - n
    p = multiply_add(C5, f, C4)
    p = multiply_add(p, f, C3)
    p = multiply_add(p, f, C2)
    p = multiply_add(p, f, C1)
    return times_power_of_two(multiply_add(p, f, _ONE), np.int32(n))


def power_of_two(b: Any, x: Any, least: float = float(_LEAST)) -> Any:
    """`exp2` of a vector, the same to the bit in each lane; for x below `least`, 2^least."""
    lowest, rounding = splat(b, F32(least)), splat(b, F32(float(_ROUNDING)))
    y = greater(b, x, lowest)
    shifted = b.fadd(y, rounding)
    f = b.fsub(y, b.fsub(shifted, rounding))
    p = splat(b, F32(float(C5)))
    for coefficient in (C4, C3, C2, C1, _ONE):
        p = fma(b, p, f, splat(b, F32(float(coefficient))))
    exponents = b.shl(b.bitcast(shifted, INTEGERS), ir.Constant(INTEGERS, [23] * LANES))
    return b.bitcast(b.add(b.bitcast(p, INTEGERS), exponents), FLOATS)


@intrinsic
def exponentials(typing: Any, x: Any, count: Any, top: Any, factor: Any, out: Any) -> Any:
    """out[i] = 2^((x[i] - top) * factor), none of which is above 1, and 0 where x is -inf; returns their sum.

    Lane by lane, then the lanes in halves. count: a multiple of 16. Addresses, of which `out` may be x.
    """

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, count, top, factor, out = arguments
        tops, factors, zero = splat(b, top), splat(b, factor), splat(b, F32(0.0))
        nothing = splat(b, F32(float("-inf")))

        def body(index: Any, sums: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            value = load(b, x, at)
            power = power_of_two(b, b.fmul(b.fsub(value, tops), factors))
            kept = b.select(b.fcmp_ordered(">", value, nothing), power, zero)
            store(b, kept, out, at)
            return [b.fadd(sums[0], kept)]

        (lanes,) = loop(b, b.sdiv(count, constant(LANES)), [zero], body)
        return joined(b, lanes, plus)

    word, number = types.intp, types.float32
    return number(word, word, number, number, word), codegen


def silu_of(b: Any, gate: Any) -> Any:
    """silu of a vector."""
    one, zero, scale = (splat(b, F32(float(each))) for each in (_ONE, _ZERO, _LOG2E))
    power = power_of_two(b, b.fmul(b.fneg(magnitude(b, gate)), scale))
    above = b.select(b.fcmp_ordered(">=", gate, zero), one, power)
    return b.fmul(gate, b.fdiv(above, b.fadd(one, power)))


def _gates(has_ups: bool) -> Any:
    """out[i] = silu(gates[i]), times ups[i] where it has them; count: a multiple of 16. Addresses."""

    @intrinsic
    def gated(typing: Any, gates: Any, ups: Any, count: Any, out: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            gates, ups, count, out = arguments

            def body(index: Any, carried: list[Any]) -> list[Any]:
                at = b.mul(index, constant(4 * LANES))
                silu = silu_of(b, load(b, gates, at))
                store(b, b.fmul(silu, load(b, ups, at)) if has_ups else silu, out, at)
                return carried

            loop(b, b.sdiv(count, constant(LANES)), [], body)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4), codegen

    return gated


_gated, _silu = _gates(True), _gates(False)


@kernel
def swiglu(gates, ups, count, out):  # type: ignore[no-untyped-def]
    """out[i] = silu(gates[i]) * ups[i]; addresses, of which `out` may be one of the others. count: a multiple of 16."""
    _gated(types.intp(gates), types.intp(ups), types.intp(count), types.intp(out))


@kernel
def silu(x, count):  # type: ignore[no-untyped-def]
    """In place; an address. count: a multiple of 16."""
    _silu(types.intp(x), types.intp(x), types.intp(count), types.intp(x))


def swiglu_reference(gates: npt.NDArray[np.float32], ups: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The same by numpy's own exponential, in fp64."""
    out: npt.NDArray[np.float32] = (gates / (1 + np.exp(-gates.astype(np.float64))) * ups).astype(np.float32)
    return out
