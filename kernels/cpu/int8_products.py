"""Exact products of eight-bit inputs and weights, for one row or many.

A weight [outputs, inputs] is packed as [outputs / 16, inputs / 4, 16, 4]: 64 bytes hold four inputs of sixteen outputs.
Inputs are stored plus 128; what that adds to a sum is 128 times the sum of the weight's row, which `rescale` subtracts.
Sums of integers are exact, so a row's result is the same to the bit in any batch, and on every processor.

Every variant keeps as many sums in registers as there are: rows x outputs. AVX2 has no such product; there 16-bit ones
are used, which are exact as well (the 8-bit ones of that time saturate). ARM has products of signed bytes, newer ones
of unsigned and signed bytes; the generic variant multiplies 32-bit numbers and runs everywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import types

from kernels.cpu.emit import I8, I32, constant, intrinsic, kernel, load, loop, prefetch, splat, store
from kernels.cpu.processor import Variant, variant
from kernels.cpu.tile_products import tiled

_GROUP, _STEP = 16, 4  # outputs and inputs of 64 bytes
_TAKES_BYTES = binding.llvm_version_info[0] >= 21  # the type of the dot product's operands changed in LLVM 21
_I16 = ir.IntType(16)
_AHEAD = 1536  # bytes of a group's weights that are asked for beforehand: processors do not look beyond a page of 4 kB
_LEAST_TILED = 4  # rows from which matrix tiles are faster than registers


class _Tile(NamedTuple):
    rows: int  # at most
    groups: int  # of 16 outputs
    lanes: int  # sums of a register


_TILES: dict[Variant, _Tile] = {
    "amx_int8": _Tile(6, 4, 16),  # for the rows that its tiles do not pay for
    "avx512_vnni": _Tile(6, 4, 16),
    "avx_vnni": _Tile(3, 2, 8),
    "avx2": _Tile(3, 1, 8),
    "neon_i8mm": _Tile(3, 2, 4),
    "neon_dot": _Tile(3, 2, 4),
    "generic": _Tile(3, 1, 4),
}


def pack(weight: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """[outputs, inputs], multiples of 64 and 4, as the kernels read it: [outputs / 16, inputs / 4, 16, 4]."""
    outputs, inputs = weight.shape
    split = weight.reshape(outputs // _GROUP, _GROUP, inputs // _STEP, _STEP)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def unpack(packed: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """What `pack` was given."""
    groups, steps = packed.shape[:2]
    return packed.transpose(0, 2, 1, 3).reshape(groups * _GROUP, steps * _STEP)


def products_reference(x: npt.NDArray[np.uint8], packed: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    """x [rows, inputs] times a packed weight, 128 still in it -> [rows, outputs]."""
    return x.astype(np.int32) @ unpack(packed).T.astype(np.int32)


def products_of(kind: Variant) -> Any:
    """`products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride)` for a kind of processor.

    sums[rows, outputs], int32, of x[rows, 4 steps], uint8, and a packed weight; addresses, and strides in bytes.
    outputs is a multiple of 64. The weight's block stays in the first cache while rows go by.
    """
    return tiled(_by_registers(kind), _LEAST_TILED) if kind == "amx_int8" else _by_registers(kind)


def _by_registers(kind: Variant) -> Any:
    tile = _TILES[kind]
    by_rows = [_tile_kernel(kind, rows + 1) for rows in range(tile.rows)]
    one, two, three = by_rows[:3]
    four, five, six = by_rows[3:] if tile.rows == 6 else by_rows
    width, most = tile.groups * _GROUP, tile.rows

    @kernel
    def products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride):  # type: ignore[no-untyped-def]
        for first in range(0, outputs, width):
            w = types.intp(weight + first * steps * _STEP)
            row = 0
            while row < rows:
                left = rows - row
                count = most if left >= 2 * most or left <= most else (left + 1) // 2
                count = min(count, left)
                a, out = types.intp(x + row * x_stride), types.intp(sums + row * sums_stride + 4 * first)
                if count == 1:
                    one(a, x_stride, w, steps, out, sums_stride)
                elif count == 2:
                    two(a, x_stride, w, steps, out, sums_stride)
                elif count == 3:
                    three(a, x_stride, w, steps, out, sums_stride)
                elif count == 4:
                    four(a, x_stride, w, steps, out, sums_stride)
                elif count == 5:
                    five(a, x_stride, w, steps, out, sums_stride)
                else:
                    six(a, x_stride, w, steps, out, sums_stride)
                row += count

    return products


def _tile_kernel(kind: Variant, rows: int) -> Any:
    """sums[rows, groups x 16] of one tile, all in registers until the end."""
    groups = _TILES[kind].groups
    emit = _EMITTERS[kind](kind)

    @intrinsic
    def tile(typing: Any, x: Any, x_stride: Any, w: Any, steps: Any, out: Any, out_stride: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            x, x_stride, w, steps, out, out_stride = arguments
            row_starts = [b.mul(x_stride, constant(row)) for row in range(rows)]
            group_starts = [b.mul(b.mul(steps, constant(64)), constant(group)) for group in range(groups)]

            def body(step: Any, sums: list[Any]) -> list[Any]:
                at = b.mul(step, constant(64))
                weights = [emit.weights(b, b.add(b.add(w, start), at)) for start in group_starts]
                for start in group_starts:
                    prefetch(b, w, start, at, constant(_AHEAD))
                flat = [part for group in weights for part in group]
                spread = [
                    emit.inputs(b, load(b, x, start, b.mul(step, constant(_STEP)), kind=I32)) for start in row_starts
                ]
                before = iter(sums)
                return [emit.add(b, next(before), row, part) for row in spread for part in flat]

            count = rows * groups * emit.parts
            sums = loop(b, steps, [ir.Constant(emit.sums, [0] * emit.lanes)] * count, body)
            for row in range(rows):
                for group in range(groups):
                    first = (row * groups + group) * emit.parts
                    place = b.add(b.mul(out_stride, constant(row)), constant(64 * group))
                    emit.write(b, sums[first : first + emit.parts], b.add(out, place))
            return context.get_dummy_value()

        signature = types.void(types.intp, types.intp, types.intp, types.intp, types.intp, types.intp)
        return signature, codegen

    return tile


class _DotProducts:
    """`vpdpbusd`: four products of a lane added to its sum in one instruction."""

    def __init__(self, kind: Variant) -> None:
        self.lanes = _TILES[kind].lanes
        self.parts = _GROUP // self.lanes  # registers of a group
        self.sums = ir.VectorType(I32, self.lanes)
        self._operand = ir.VectorType(I8, 4 * self.lanes) if _TAKES_BYTES else self.sums
        self._name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"

    def weights(self, b: Any, address: Any) -> list[Any]:
        parts = (load(b, address, constant(4 * self.lanes * part), kind=self.sums) for part in range(self.parts))
        return [b.bitcast(part, self._operand) for part in parts]

    def inputs(self, b: Any, four: Any) -> Any:
        return b.bitcast(splat(b, four, self.lanes), self._operand)

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        kind = ir.FunctionType(self.sums, [self.sums, self._operand, self._operand])
        return b.call(b.module.declare_intrinsic(self._name, (), kind), [total, inputs, weights])

    def write(self, b: Any, sums: Sequence[Any], address: Any) -> None:
        for part, total in enumerate(sums):
            store(b, total, address, constant(4 * self.lanes * part))


class _Sums16:
    """`vpmaddwd`: products of 16-bit numbers, added in pairs; the pairs of an output meet at the end."""

    lanes, parts, sums = 8, 4, ir.VectorType(I32, 8)
    _words = ir.VectorType(_I16, 16)

    def __init__(self, kind: Variant) -> None:
        pass

    def weights(self, b: Any, address: Any) -> list[Any]:
        bytes16 = ir.VectorType(I8, 16)
        return [b.sext(load(b, address, constant(16 * part), kind=bytes16), self._words) for part in range(self.parts)]

    def inputs(self, b: Any, four: Any) -> Any:
        words = b.zext(b.bitcast(four, ir.VectorType(I8, 4)), ir.VectorType(_I16, 4))
        return b.bitcast(splat(b, b.bitcast(words, ir.IntType(64)), 4), self._words)

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        kind = ir.FunctionType(self.sums, [self._words, self._words])
        pairs = b.module.declare_intrinsic("llvm.x86.avx2.pmadd.wd", (), kind)
        return b.add(total, b.call(pairs, [inputs, weights]))

    def write(self, b: Any, sums: Sequence[Any], address: Any) -> None:
        for part in (0, 2):
            even, odd = (ir.Constant(self.sums, list(range(first, 16, 2))) for first in (0, 1))
            two = sums[part : part + 2]
            joined = b.add(b.shuffle_vector(*two, even), b.shuffle_vector(*two, odd))
            store(b, joined, address, constant(16 * part))


class _Fours:
    """Sums of four outputs in a register of 128 bits."""

    lanes, parts, sums = 4, 4, ir.VectorType(I32, 4)
    _bytes = ir.VectorType(I8, 16)

    def __init__(self, kind: Variant) -> None:
        self._kind = kind

    def weights(self, b: Any, address: Any) -> list[Any]:
        return [load(b, address, constant(16 * part), kind=self._bytes) for part in range(self.parts)]

    def inputs(self, b: Any, four: Any) -> Any:
        return b.bitcast(splat(b, four, 4), self._bytes)

    def write(self, b: Any, sums: Sequence[Any], address: Any) -> None:
        for part, total in enumerate(sums):
            store(b, total, address, constant(16 * part))

    def _dots(self, b: Any, name: str, *operands: Any) -> Any:
        kind = ir.FunctionType(self.sums, [self.sums, self._bytes, self._bytes])
        return b.call(b.module.declare_intrinsic(f"llvm.aarch64.neon.{name}.v4i32.v16i8", (), kind), operands)


class _MixedDots(_Fours):
    """ARM's `usdot`: four products of unsigned and signed bytes added to a lane."""

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        return self._dots(b, "usdot", total, inputs, weights)


class _SignedDots(_Fours):
    """ARM's `sdot`, of signed bytes: an input minus 128; what that takes away is added again, once for all rows."""

    _low = ir.Constant(ir.VectorType(I8, 16), [-128] * 16)

    def weights(self, b: Any, address: Any) -> list[Any]:
        zero = ir.Constant(self.sums, [0] * 4)
        return [(part, self._dots(b, "sdot", zero, self._low, part)) for part in super().weights(b, address)]

    def inputs(self, b: Any, four: Any) -> Any:
        return b.xor(super().inputs(b, four), self._low)

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        part, taken = weights
        return b.sub(self._dots(b, "sdot", total, inputs, part), taken)


class _Plain(_Fours):
    """No instruction of any processor's own."""

    def add(self, b: Any, total: Any, inputs: Any, weights: Any) -> Any:
        wide = ir.VectorType(I32, 16)
        each = b.mul(b.zext(inputs, wide), b.sext(weights, wide))
        for place in range(_STEP):
            total = b.add(total, b.shuffle_vector(each, each, ir.Constant(self.sums, list(range(place, 16, _STEP)))))
        return total


_EMITTERS: dict[Variant, Callable[[Variant], Any]] = {
    "amx_int8": _DotProducts,
    "avx512_vnni": _DotProducts,
    "avx_vnni": _DotProducts,
    "avx2": _Sums16,
    "neon_i8mm": _MixedDots,
    "neon_dot": _SignedDots,
    "generic": _Plain,
}

products = products_of(variant() or "generic")
