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
    I32,
    LANES,
    constant,
    floor,
    fma,
    intrinsic,
    joined,
    kernel,
    load,
    loop,
    magnitude,
    multiply_add,
    splat,
    store,
    times_power_of_two,
)

_LN2 = 0.6931471805599453
C6, C5, C4, C3, C2, C1 = (np.float32(_LN2**k / f) for k, f in ((6, 720), (5, 120), (4, 24), (3, 6), (2, 2), (1, 1)))
_LEAST = np.float32(-125.0)
_LOG2E, _ONE, _HALF, _ZERO = np.float32(1 / _LN2), np.float32(1.0), np.float32(0.5), np.float32(0.0)


@kernel(inline="always")
def exp2(x):  # type: ignore[no-untyped-def]
    """2^x for x <= 0 in fp32, within 2e-7 of itself; 2^-125 below that."""
    y = x if x > _LEAST else _LEAST
    n = np.floor(y + _HALF)
    f = y - n
    p = multiply_add(C6, f, C5)
    p = multiply_add(p, f, C4)
    p = multiply_add(p, f, C3)
    p = multiply_add(p, f, C2)
    p = multiply_add(p, f, C1)
    return times_power_of_two(multiply_add(p, f, _ONE), np.int32(n))


def _power_of_two(b: Any, x: Any) -> Any:
    """`exp2` of a vector, the same to the bit in each lane."""
    least, half = splat(b, F32(float(_LEAST))), splat(b, F32(0.5))
    y = b.select(b.fcmp_ordered(">", x, least), x, least)
    n = floor(b, b.fadd(y, half))
    f = b.fsub(y, n)
    p = splat(b, F32(float(C6)))
    for coefficient in (C5, C4, C3, C2, C1, _ONE):
        p = fma(b, p, f, splat(b, F32(float(coefficient))))
    whole = ir.VectorType(I32, LANES)
    shifted = b.shl(b.fptosi(n, whole), ir.Constant(whole, [23] * LANES))
    return b.bitcast(b.add(b.bitcast(p, whole), shifted), FLOATS)


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
            power = _power_of_two(b, b.fmul(b.fsub(value, tops), factors))
            kept = b.select(b.fcmp_ordered(">", value, nothing), power, zero)
            store(b, kept, out, at)
            return [b.fadd(sums[0], kept)]

        (lanes,) = loop(b, b.sdiv(count, constant(LANES)), [zero], body)
        return joined(b, lanes, lambda b, x, y: b.fadd(x, y))

    word, number = types.intp, types.float32
    return number(word, word, number, number, word), codegen


def _gates(has_ups: bool) -> Any:
    """out[i] = silu(gates[i]), times ups[i] where it has them; count: a multiple of 16. Addresses."""

    @intrinsic
    def gated(typing: Any, gates: Any, ups: Any, count: Any, out: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            gates, ups, count, out = arguments
            one, zero, scale = (splat(b, F32(float(each))) for each in (_ONE, _ZERO, _LOG2E))

            def body(index: Any, carried: list[Any]) -> list[Any]:
                at = b.mul(index, constant(4 * LANES))
                gate = load(b, gates, at)
                power = _power_of_two(b, b.fmul(b.fneg(magnitude(b, gate)), scale))
                above = b.select(b.fcmp_ordered(">=", gate, zero), one, power)
                silu = b.fmul(gate, b.fdiv(above, b.fadd(one, power)))
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
