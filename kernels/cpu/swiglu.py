"""silu(gate) * up, the low-rank layer of mask tokens, and the exponential of both and of attention: a polynomial, the same on
every processor.
"""

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import dot, get, kernel, multiply_add, put, times_power_of_two
from kernels.cpu.quantize import norm_factor, norm_factor_reference

Floats = npt.NDArray[np.float32]
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


@kernel(inline="always")
def _sigmoid(x):  # type: ignore[no-untyped-def]
    power = exp2(-abs(x) * _LOG2E)
    return (_ONE if x >= _ZERO else power) / (_ONE + power)


@kernel
def swiglu(gates, ups, count, out):  # type: ignore[no-untyped-def]
    """out[i] = silu(gates[i]) * ups[i]; addresses, of which `out` may be one of the others."""
    for i in range(count):
        gate = get(gates, i)
        put(out, i, gate * _sigmoid(gate) * get(ups, i))


def swiglu_reference(gates: npt.NDArray[np.float32], ups: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The same by numpy's own exponential, in fp64."""
    out: npt.NDArray[np.float32] = (gates / (1 + np.exp(-gates.astype(np.float64))) * ups).astype(np.float32)
    return out


@kernel
def adapt(x, count, size, eps, rank, down, up, inner):  # type: ignore[no-untyped-def]
    """x + up @ silu(down @ norm(x)), in place, for `count` floats at x, zeros from `size` on (see `MaskAdapter`).

    down, up: fp32 [rank, count]; inner: room for `rank` floats. Addresses.
    """
    factor = norm_factor(x, count, size, eps)
    for component in range(rank):
        gate = dot(x, down + 4 * component * count, count) * factor
        put(inner, component, gate * _sigmoid(gate))
    for component in range(rank):
        share, row = get(inner, component), up + 4 * component * count
        for i in range(count):
            put(x, i, multiply_add(share, get(row, i), get(x, i)))


def adapt_reference(x: Floats, size: int, eps: float, down: Floats, up: Floats) -> Floats:
    """Of rows [rows, columns] with down and up [rank, columns], in fp64."""
    gates = (x.astype(np.float64) @ down.T) * norm_factor_reference(x, size, eps)[:, None]
    out: Floats = (x + (gates / (1 + np.exp(-gates))) @ up).astype(np.float32)
    return out
