"""What a mask token's row gets before a layer: x + up @ silu(down @ norm(x)), with few components."""

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import dot, get, kernel, multiply_add, put
from kernels.cpu.quantize import norm_factor, norm_factor_reference
from kernels.cpu.swiglu import exp2

_LOG2E, _ONE, _ZERO = np.float32(1.4426950408889634), np.float32(1.0), np.float32(0.0)
Floats = npt.NDArray[np.float32]


@kernel
def adapt(x, count, size, eps, rank, down, up, inner):  # type: ignore[no-untyped-def]
    """In place, for `count` floats at x, zeros from `size` on. down, up: fp32 [rank, count]; inner: room for `rank` floats."""
    factor = norm_factor(x, count, size, eps)
    for component in range(rank):
        gate = dot(x, down + 4 * component * count, count) * factor
        power = exp2(-abs(gate) * _LOG2E)
        put(inner, component, gate * ((_ONE if gate >= _ZERO else power) / (_ONE + power)))
    for component in range(rank):
        share, row = get(inner, component), up + 4 * component * count
        for i in range(count):
            put(x, i, multiply_add(share, get(row, i), get(x, i)))


def adapt_reference(x: Floats, size: int, eps: float, down: Floats, up: Floats) -> Floats:
    """Of rows [rows, columns] with down and up [rank, columns], in fp64."""
    gates = (x.astype(np.float64) @ down.T) * norm_factor_reference(x, size, eps)[:, None]
    out: Floats = (x + (gates / (1 + np.exp(-gates))) @ up).astype(np.float32)
    return out
