"""Exact products of eight-bit inputs and weights on Intel's matrix tiles (AMX), sixteen rows at a time.

`tdpbusd` multiplies sixteen rows of 64 inputs with sixteen outputs, and the packing of `int8_products` is what it reads:
1,024 consecutive bytes hold 64 inputs of sixteen outputs. Integers are the same as those of any other variant. Up to
sixteen rows cost little more than reading the weight. The instructions are described in Intel's Architecture
Instruction Set Extensions Programming Reference, chapter 3.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from kernels.cpu.emit import I8, I64, constant, intrinsic, kernel, loop, pointer

TILE_ROWS = 16
TILE_STEPS = 16  # steps of four inputs that one instruction takes
_GROUPS = 4  # of sixteen outputs: a block of `products`
_INPUTS, _WEIGHTS = 4, (5, 6, 7)  # numbers of the tiles; 0 to 3 hold the sums


def _call(b: Any, name: str, *arguments: Any) -> None:
    """An instruction on tiles. Tiles are numbered by constants of eight bits."""
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
    full = f"llvm.x86.{name}"
    b.call(b.module.globals.get(full) or ir.Function(b.module, kind, full), arguments)


def _number(tile: int) -> Any:
    return ir.Constant(I8, tile)


@intrinsic
def _configure(typing: Any, rows: Any) -> Any:
    """Give the tiles of inputs and sums `rows` rows (1 to 16) of 64 bytes, and those of weights sixteen."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        words = ir.ArrayType(I64, 8)
        with b.goto_entry_block():
            place = b.alloca(words)
        wide = 64 * sum(1 << 16 * tile for tile in range(4))  # bytes of a row, 16 bits a tile
        counts = b.add(
            b.mul(arguments[0], constant(sum(1 << 8 * tile for tile in (0, 1, 2, 3, _INPUTS)))),
            constant(TILE_ROWS * sum(1 << 8 * tile for tile in _WEIGHTS)),
        )
        values = [
            constant(1),
            constant(0),
            constant(wide),
            constant(wide),
            constant(0),
            constant(0),
            counts,
            constant(0),
        ]
        for index, value in enumerate(values):
            b.store(value, b.gep(place, [constant(0), constant(index)]))
        _call(b, "ldtilecfg", b.bitcast(place, I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp), codegen


@intrinsic
def _release(typing: Any) -> Any:
    """Give the tiles back, so that the system need not keep them when threads change."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        _call(b, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _tile(typing: Any, x: Any, x_stride: Any, w: Any, steps: Any, out: Any, out_stride: Any) -> Any:
    """sums[rows, 64] of as many rows as are configured."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, x_stride, w, steps, out, out_stride = arguments
        group = b.mul(steps, constant(64))
        for number in range(_GROUPS):
            _call(b, "tilezero", _number(number))

        def body(index: Any, carried: list[Any]) -> list[Any]:
            inputs = pointer(b, x, b.mul(index, constant(64)), to=I8)
            _call(b, "tileloadd64", _number(_INPUTS), inputs, x_stride)
            at = b.mul(index, constant(64 * TILE_STEPS))
            for number in range(_GROUPS):
                tile = _number(_WEIGHTS[number % len(_WEIGHTS)])
                weights = pointer(b, w, at, b.mul(group, constant(number)), to=I8)
                _call(b, "tileloadd64", tile, weights, constant(64))
                _call(b, "tdpbusd", _number(number), _number(_INPUTS), tile)
            return carried

        loop(b, b.sdiv(steps, constant(TILE_STEPS)), [], body)
        for number in range(_GROUPS):
            target = pointer(b, out, constant(64 * number), to=I8)
            _call(b, "tilestored64", _number(number), target, out_stride)
        return context.get_dummy_value()

    signature = types.void(types.intp, types.intp, types.intp, types.intp, types.intp, types.intp)
    return signature, codegen


def tiled(products: Any, least: int) -> Any:
    """`products` on tiles from `least` rows on, where the inputs fill them; otherwise the one that is given."""

    @kernel
    def tiled_products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride):  # type: ignore[no-untyped-def]
        if rows < least or steps % TILE_STEPS != 0:
            products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride)
            return
        for row in range(0, rows, TILE_ROWS):
            count = min(TILE_ROWS, rows - row)
            if row == 0 or count < TILE_ROWS:
                _configure(count)
            a, out = types.intp(x + row * x_stride), types.intp(sums + row * sums_stride)
            for first in range(0, outputs, 64):
                w = types.intp(weight + 4 * first * steps)
                _tile(a, x_stride, w, steps, types.intp(out + 4 * first), sums_stride)
        _release()

    return tiled_products
