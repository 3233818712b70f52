"""Sums of rows with weights, in fp32: what attention does with keys and with values. Every sum goes from the first row
to the last.

The sum of an output is one chain of fused multiply-adds, so it depends on neither the tile that it lies in nor on what
is summed with it; a row of weight 0 changes nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.emit import F32, LANES, constant, fma, intrinsic, kernel, load, loop, prefetch, splat, store
from kernels.cpu.processor import variant

_HAS_32_REGISTERS = variant() in ("amx_int8", "avx512_vnni")
_ROWS, _WIDE = (6, 4) if _HAS_32_REGISTERS else (3, 2)  # of a tile; in vectors of 16


def weighted_sums_reference(
    weights: npt.NDArray[np.float32], rows: npt.NDArray[np.float32], start: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """start + weights [outputs, rows] times rows [rows, columns], one row after another, each step rounded once."""
    out = start.astype(np.float32)
    for index, row in enumerate(rows):
        # fp64 holds the product of two fp32 exactly; a sum in fp64 rounded to fp32 is the fused one but in rarest cases
        out = (weights[:, index, None].astype(np.float64) * row.astype(np.float64) + out).astype(np.float32)
    return out


def _tile_kernel(outputs: int, wide: int) -> Any:
    """out[outputs, 16 wide] of one tile, all in registers until the end. ahead: rows that are read soon."""

    @intrinsic
    def tile(
        typing: Any,
        weights: Any,
        w_stride: Any,
        rows: Any,
        r_stride: Any,
        count: Any,
        out: Any,
        o_stride: Any,
        add: Any,
        ahead: Any,
    ) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            weights, w_stride, rows, r_stride, count, out, o_stride, add, ahead = arguments
            starts = [b.mul(w_stride, constant(i)) for i in range(outputs)]
            places = [
                (b.mul(o_stride, constant(i)), constant(4 * LANES * v)) for i in range(outputs) for v in range(wide)
            ]
            zero = splat(b, F32(0.0))
            first = b.select(add, constant(1), constant(0))

            def there(index: Any, sums: list[Any]) -> list[Any]:
                return [load(b, out, *place) for place in places]

            def body(index: Any, sums: list[Any]) -> list[Any]:
                at = b.mul(index, r_stride)
                parts = [load(b, rows, at, constant(4 * LANES * v)) for v in range(wide)]
                for v in range(wide):
                    prefetch(b, ahead, at, constant(4 * LANES * v))
                step = b.mul(index, constant(4))
                spread = [splat(b, load(b, weights, start, step, kind=F32)) for start in starts]
                before = iter(sums)
                return [fma(b, one, part, next(before)) for one in spread for part in parts]

            sums = loop(b, count, loop(b, first, [zero] * len(places), there), body)
            for place, total in zip(places, sums, strict=True):
                store(b, total, out, *place)
            return context.get_dummy_value()

        word, size = types.intp, types.intp
        return types.void(word, size, word, size, size, word, size, types.boolean, word), codegen

    return tile


_tiles = [_tile_kernel(outputs + 1, _WIDE) for outputs in range(_ROWS)]
_one, _two, _three = _tiles[:3]
_four, _five, _six = _tiles[3:] if _HAS_32_REGISTERS else _tiles


@kernel
def weighted_sums(  # type: ignore[no-untyped-def]
    weights, w_stride, outputs, rows, r_stride, count, out, o_stride, columns, add, ahead
):
    """out[outputs, columns] (+)= weights[outputs, count] times rows[count, columns]; addresses, strides in bytes.

    columns: a multiple of 64. add: to what is in `out`, as if its rows had been summed here before. ahead: rows that are read
    next, which memory is asked for meanwhile, or `rows` again.
    """
    for first in range(0, columns, LANES * _WIDE):
        r = types.intp(rows + 4 * first)
        done, soon = 0, types.intp(ahead + 4 * first)
        while done < outputs:
            left = outputs - done
            some = min(_ROWS if left >= 2 * _ROWS or left <= _ROWS else (left + 1) // 2, left)
            w, o = types.intp(weights + done * w_stride), types.intp(out + done * o_stride + 4 * first)
            if some == 1:
                _one(w, w_stride, r, r_stride, count, o, o_stride, add, soon)
            elif some == 2:
                _two(w, w_stride, r, r_stride, count, o, o_stride, add, soon)
            elif some == 3:
                _three(w, w_stride, r, r_stride, count, o, o_stride, add, soon)
            elif some == 4:
                _four(w, w_stride, r, r_stride, count, o, o_stride, add, soon)
            elif some == 5:
                _five(w, w_stride, r, r_stride, count, o, o_stride, add, soon)
            else:
                _six(w, w_stride, r, r_stride, count, o, o_stride, add, soon)
            done += some
            soon = r  # asked for once


@kernel
def rows_times(x, rows, matrix, count, columns, out):  # type: ignore[no-untyped-def]
    """out[rows, columns] = x[rows, count] times matrix[count, columns], in one piece each; columns: a multiple of 64."""
    weighted_sums(x, 4 * count, rows, matrix, 4 * columns, count, out, 4 * columns, columns, False, matrix)


@kernel
def parts_times(x, stride, rows, matrices, parts, count, columns, out):  # type: ignore[no-untyped-def]
    """out[rows, parts, columns] = each part [count] of the rows x times its own of the matrices [parts, count, columns].

    stride: of x, in bytes; columns: a multiple of 64.
    """
    for part in range(parts):
        one, matrix, to = x + 4 * part * count, matrices + 4 * part * count * columns, out + 4 * part * columns
        weighted_sums(one, stride, rows, matrix, 4 * columns, count, to, 4 * parts * columns, columns, False, matrix)
