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

from kernels.cpu.emit import I8, I64, constant, intrinsic, kernel, loop, page_and_next, pointer, prefetch

TILE_ROWS = 16
TILE_STEPS = 16  # steps of four inputs that one instruction takes
_TILE_BYTES = 64 * TILE_STEPS
_TILES, _SUMS = 8, 4  # tiles there are; the first hold sums
_LINE = 64
_GROUPS, _BLOCK = 4, 64  # groups of sixteen outputs in a block


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
    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        _call(b, "tilerelease")
        return context.get_dummy_value()

    return types.void(), codegen


class _Block:
    """The code of a block: sums[rows, 64] of one or two tiles of rows, as many rows as are configured.

    Every weight is read once. Two tiles of sums go through all inputs at a time, while those of the two before are stored,
    one after the other: four stores in a row would keep memory waiting.
    """

    def __init__(self, b: Any, parts: int, is_paged: bool, arguments: Sequence[Any]) -> None:
        self._b, self._parts, self._is_paged = b, parts, is_paged
        self._x, self._x_stride, self._w, steps, self._out, self._out_stride, self._ahead = arguments
        self._wide = _SUMS // 2 // parts  # groups of sixteen outputs at a time
        self._count = b.sdiv(steps, constant(TILE_STEPS))
        self._group_bytes = constant(_TILE_BYTES) if is_paged else b.mul(steps, constant(_LINE))

    def emit(self) -> None:
        b = self._b
        left: list[tuple[int, int, int]] = []  # tiles of sums that are to be stored, their group and part
        third = b.sdiv(self._count, constant(3))
        for first in range(0, _GROUPS, self._wide):
            sums = (0, 1) if first // self._wide % 2 == 0 else (2, 3)
            for tile in sums:
                _call(b, "tilezero", _number(tile))
            done = constant(0)
            for each in left:
                self._multiply(done, third, first, sums)
                self._write(*each)
                done = b.add(done, third)
            self._multiply(done, b.sub(self._count, done), first, sums)
            groups, parts = range(self._wide), range(self._parts)
            left = [(sums[self._wide * part + group], first + group, part) for part in parts for group in groups]
        for each in left:
            self._write(*each)

    def _multiply(self, start: Any, count: Any, first: int, sums: Sequence[int]) -> None:
        """So many instructions' inputs from `start` on, times the weights of the groups from `first` on."""

        def body(index: Any, carried: list[Any]) -> list[Any]:
            self._multiply_once(self._b.add(start, index), first, sums)
            return carried

        loop(self._b, count, [], body)

    def _multiply_once(self, index: Any, first: int, sums: Sequence[int]) -> None:
        b, parts = self._b, range(self._parts)
        for part in parts:
            start = b.mul(self._x_stride, constant(TILE_ROWS * part))
            inputs = pointer(b, self._x, start, b.mul(index, constant(_LINE)), to=I8)
            _call(b, "tileloadd64", _number(_SUMS + part), inputs, self._x_stride)
        place, asked = self._places(index, first)
        for group in range(self._wide):
            tile, start = _number(_SUMS + self._parts + group), b.mul(self._group_bytes, constant(group))
            for line in range(0, _TILE_BYTES, _LINE):
                prefetch(b, asked, constant(group * _TILE_BYTES + line))
            _call(b, "tileloadd64", tile, pointer(b, place, start, to=I8), constant(_LINE))
            for part in parts:
                _call(b, "tdpbusd", _number(sums[self._wide * part + group]), _number(_SUMS + part), tile)

    def _places(self, index: Any, first: int) -> tuple[Any, Any]:
        """Where the weights of the groups from `first` on are, and what to ask for meanwhile."""
        b, start = self._b, self._b.mul(self._group_bytes, constant(first))
        if self._is_paged:
            plane = b.add(self._ahead, start)
            this, soon = page_and_next(b, self._w, index, self._count)
            return b.add(this, plane), b.add(soon, plane)
        at = b.mul(index, constant(_TILE_BYTES))
        asked = b.add(start, b.mul(at, constant(self._wide)))
        return b.add(self._w, b.add(start, at)), b.add(self._ahead, asked)

    def _write(self, tile: int, group: int, part: int) -> None:
        b = self._b
        start = b.mul(self._out_stride, constant(TILE_ROWS * part))
        target = pointer(b, self._out, start, constant(_LINE * group), to=I8)
        _call(b, "tilestored64", _number(tile), target, self._out_stride)


def _block(parts: int, is_paged: bool = False) -> Any:
    """A kernel (x, x_stride, w, steps, out, out_stride, ahead) for that many tiles of rows.

    w: the weights' address, and as many bytes as they have are asked for at `ahead` meanwhile. is_paged: an instruction's
    64 inputs have their weights `ahead` bytes into a page of their own, and w is where the pages' addresses are.
    """

    @intrinsic
    def block(typing: Any, x: Any, x_stride: Any, w: Any, steps: Any, out: Any, out_stride: Any, ahead: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            _Block(b, parts, is_paged, arguments).emit()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), codegen

    return block


def _counts(first: Sequence[int], rest: int) -> int:
    """Rows of the tiles as `_configure` takes them: 1 for those of `first`, `rest` for the others."""
    return sum((1 if tile in first else rest) << 8 * tile for tile in range(_TILES))


_one_tile, _two_tiles = _block(1), _block(2)
_one_tile_of_pages, _two_tiles_of_pages = _block(1, True), _block(2, True)
_ROWS_OF_ONE = _counts((0, 1, 2, 3, 4), 0)  # times the rows
_WEIGHTS_OF_ONE = _counts((), TILE_ROWS) - TILE_ROWS * _ROWS_OF_ONE
_ROWS_OF_SECOND = _counts((1, 3, 5), 0)  # times the rows after the first sixteen
_REST_OF_TWO = _counts((), TILE_ROWS) - TILE_ROWS * _ROWS_OF_SECOND


@kernel
def prepare_tiles(rows, ready):  # type: ignore[no-untyped-def]
    """Configure the tiles for products of so many rows, unless they are `ready` for as many; returns the rows."""
    if rows != ready:
        if rows <= TILE_ROWS:
            _configure(rows * _ROWS_OF_ONE + _WEIGHTS_OF_ONE)
        else:
            _configure((rows - TILE_ROWS) * _ROWS_OF_SECOND + _REST_OF_TWO)
    return rows


@kernel
def release_tiles():  # type: ignore[no-untyped-def]
    """Give the tiles back, so that the system need not keep them when threads change."""
    _release()


@kernel
def tile_products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride, ahead):  # type: ignore[no-untyped-def]
    """Products of at most 32 rows, for which the tiles are prepared (see `int8_products.Products`)."""
    for first in range(0, outputs, _BLOCK):
        w, out = types.intp(weight + 4 * first * steps), types.intp(sums + 4 * first)
        following = types.intp(w + 4 * _BLOCK * steps if first + _BLOCK < outputs else ahead)
        if rows <= TILE_ROWS:
            _one_tile(x, x_stride, w, steps, out, sums_stride, following)
        else:
            _two_tiles(x, x_stride, w, steps, out, sums_stride, following)


@kernel
def tile_sums_of_pages(x, x_stride, rows, pages, count, plane, outputs, sums, sums_stride):  # type: ignore[no-untyped-def]
    """As `tile_products`, of weights in pages (see `int8_products.Products`)."""
    for first in range(0, outputs, _BLOCK):
        start, out = types.intp(plane + 64 * first), types.intp(sums + 4 * first)
        if rows <= TILE_ROWS:
            _one_tile_of_pages(x, x_stride, pages, count * TILE_STEPS, out, sums_stride, start)
        else:
            _two_tiles_of_pages(x, x_stride, pages, count * TILE_STEPS, out, sums_stride, start)
