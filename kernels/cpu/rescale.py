"""Sums of eight-bit products as floats: times the scale of the row and that of the output, plus a bias."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kernels.cpu.emit import (
    FLOATS,
    I32,
    LANES,
    constant,
    get,
    get_int,
    intrinsic,
    kernel,
    load,
    loop,
    put,
    splat,
    store,
)


@intrinsic
def _rescale_vectors(typing: Any, sums: Any, count: Any, offsets: Any, scales: Any, factor: Any, out: Any) -> Any:
    """Of whole vectors of sixteen outputs. Written out, because a loop would check for overlaps at every call."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        sums, count, offsets, scales, factor, out = arguments
        integers, factors = ir.VectorType(I32, LANES), splat(b, factor)

        def body(index: Any, carried: list[Any]) -> list[Any]:
            at = b.mul(index, constant(4 * LANES))
            total = b.sub(load(b, sums, at, kind=integers), load(b, offsets, at, kind=integers))
            store(b, b.fmul(b.sitofp(total, FLOATS), b.fmul(factors, load(b, scales, at))), out, at)
            return carried

        loop(b, count, [], body)
        return context.get_dummy_value()

    word = types.intp
    return types.void(word, word, word, word, types.float32, word), codegen


@kernel
def rescale(sums, outputs, offsets, scales, biases, input_scale, out):  # type: ignore[no-untyped-def]
    """out[o] = (sums[o] - offsets[o]) * input_scale * scales[o] + biases[o], fp32; addresses. biases 0: none."""
    _rescale_vectors(sums, outputs // LANES, offsets, scales, input_scale, out)
    for o in range(outputs // LANES * LANES, outputs):
        put(out, o, np.float32(get_int(sums, o) - get_int(offsets, o)) * (input_scale * get(scales, o)))
    if biases != 0:
        for o in range(outputs):
            put(out, o, get(out, o) + get(biases, o))
