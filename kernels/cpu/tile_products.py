"""Exact products of eight-bit inputs and weights on Intel's matrix tiles (AMX), up to 32 rows at a time.

`tdpbusd` multiplies sixteen rows of 64 inputs with sixteen outputs, and the packing of `int8_products` is what it reads:
1,024 consecutive bytes hold 64 inputs of sixteen outputs. Integers are the same as those of any other variant. Two tiles
of rows share one reading of the weights, so that up to 32 rows cost little more than that. The instructions are
described in Intel's Architecture Instruction Set Extensions Programming Reference, chapter 3.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from kernels.cpu.emit import I8, I64, constant, intrinsic, kernel, loop, pointer, prefetch

TILE_ROWS = 16
TILE_STEPS = 16  # steps of four inputs that one instruction takes
_TILE_BYTES = 64 * TILE_STEPS
_TILES, _SUMS = 8, 4  # tiles there are; the first hold sums
_AHEAD = 1024  # bytes of a group's weights that are asked for beforehand: those of the next instruction
_LINE = 64


def _call(b: Any, name: str, *arguments: Any) -> None:
    """An instruction on tiles. Tiles are numbered by constants of eight bits."""
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
    full = f"llvm.x86.{name}"
    b.call(b.module.globals.get(full) or ir.Function(b.module, kind, full), arguments)


def _number(tile: int) -> Any:
    return ir.Constant(I8, tile)


@intrinsic
def _configure(typing: Any, counts: Any) -> Any:
    """Give each tile rows of 64 bytes: as many as its byte of `counts` says, the first tile's being the lowest."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        words = ir.ArrayType(I64, 8)
        with b.goto_entry_block():
            place = b.alloca(words)
        wide = constant(_LINE * sum(1 << 16 * tile for tile in range(4)))  # bytes of a row, 16 bits a tile
        values = [constant(1), constant(0), wide, wide, constant(0), constant(0), arguments[0], constant(0)]
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


def _block(parts: int) -> Any:
    """sums[rows, 64 / parts] of that many tiles of rows, as many rows as are configured: every weight is read once."""
    groups = _SUMS // parts
    weights = range(_SUMS + parts, _TILES)

    @intrinsic
    def block(typing: Any, x: Any, x_stride: Any, w: Any, steps: Any, out: Any, out_stride: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            x, x_stride, w, steps, out, out_stride = arguments
            group_bytes = b.mul(steps, constant(_LINE))
            rows = [b.mul(x_stride, constant(TILE_ROWS * part)) for part in range(parts)]
            for tile in range(_SUMS):
                _call(b, "tilezero", _number(tile))

            def body(index: Any, carried: list[Any]) -> list[Any]:
                for part, start in enumerate(rows):
                    inputs = pointer(b, x, start, b.mul(index, constant(64)), to=I8)
                    _call(b, "tileloadd64", _number(_SUMS + part), inputs, x_stride)
                at = b.mul(index, constant(_TILE_BYTES))
                for group in range(groups):
                    tile, start = _number(weights[group % len(weights)]), b.mul(group_bytes, constant(group))
                    for line in range(0, _TILE_BYTES, _LINE):
                        prefetch(b, w, at, start, constant(_AHEAD + line))
                    _call(b, "tileloadd64", tile, pointer(b, w, at, start, to=I8), constant(_LINE))
                    for part in range(parts):
                        _call(b, "tdpbusd", _number(groups * part + group), _number(_SUMS + part), tile)
                return carried

            loop(b, b.sdiv(steps, constant(TILE_STEPS)), [], body)
            for part in range(parts):
                for group in range(groups):
                    start = b.mul(out_stride, constant(TILE_ROWS * part))
                    target = pointer(b, out, start, constant(64 * group), to=I8)
                    _call(b, "tilestored64", _number(groups * part + group), target, out_stride)
            return context.get_dummy_value()

        signature = types.void(types.intp, types.intp, types.intp, types.intp, types.intp, types.intp)
        return signature, codegen

    return block


def _counts(first: Sequence[int], rest: int) -> int:
    """Rows of the tiles as `_configure` takes them: 1 for those of `first`, `rest` for the others."""
    return sum((1 if tile in first else rest) << 8 * tile for tile in range(_TILES))


_one_tile, _two_tiles = _block(1), _block(2)
_ROWS_OF_ONE = _counts((0, 1, 2, 3, 4), 0)  # times the rows
_WEIGHTS_OF_ONE = _counts((), TILE_ROWS) - TILE_ROWS * _ROWS_OF_ONE
_ROWS_OF_SECOND = _counts((2, 3, 5), 0)  # times the rows behind the first sixteen
_REST_OF_TWO = _counts((), TILE_ROWS) - TILE_ROWS * _ROWS_OF_SECOND


def tiled(products: Any, least: int) -> Any:
    """`products` on tiles from `least` rows on, where the inputs fill them; otherwise the one that is given."""

    @kernel
    def tiled_products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride):  # type: ignore[no-untyped-def]
        if rows < least or steps % TILE_STEPS != 0:
            products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride)
            return
        for row in range(0, rows, 2 * TILE_ROWS):
            count = min(2 * TILE_ROWS, rows - row)
            a, out = types.intp(x + row * x_stride), types.intp(sums + row * sums_stride)
            if count <= TILE_ROWS:
                _configure(count * _ROWS_OF_ONE + _WEIGHTS_OF_ONE)
                for first in range(0, outputs, 64):
                    w = types.intp(weight + 4 * first * steps)
                    _one_tile(a, x_stride, w, steps, types.intp(out + 4 * first), sums_stride)
            else:
                _configure((count - TILE_ROWS) * _ROWS_OF_SECOND + _REST_OF_TWO)
                for first in range(0, outputs, 32):
                    w = types.intp(weight + 4 * first * steps)
                    _two_tiles(a, x_stride, w, steps, types.intp(out + 4 * first), sums_stride)
        _release()

    return tiled_products
