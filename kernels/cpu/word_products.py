"""Products on AVX2, which has no exact one of bytes: inputs and weights become words of 16 bits, whose products are
added in pairs (`vpmaddwd`).

The inputs of a few rows are widened once, for all outputs of a piece, and read as words from memory afterwards; weights
are widened as they are loaded. A tile is so small that all of it stays in the sixteen registers. Attention's inputs have
16 bits from the start, so it takes half as many products as where numbers of 16 bits are two of 8.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu.emit import (
    I8,
    I32,
    I64,
    constant,
    intrinsic,
    kernel,
    load,
    loop,
    page_and_next,
    prefetch,
    put_long,
    splat,
    store,
)
from kernels.cpu.emitters import share
from kernels.cpu.job import GROUP, PAGE, STEP

_ROWS = 4  # of a tile
_STEPS = 384  # whose inputs are wide at a time
_WIDE = 2 * STEP * _STEPS  # bytes of a wide row
_PAGES = 4  # of words whose products a sum of 32 bits surely holds
_INTS, _WORDS, _BYTES = ir.VectorType(I32, 8), ir.VectorType(ir.IntType(16), 16), ir.VectorType(I8, 16)
_FLOATS, _DOUBLES = ir.VectorType(ir.FloatType(), 8), ir.VectorType(ir.DoubleType(), 8)
_Kind = Literal["products", "scores", "totals"]


@kernel
def word_products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride, ahead):  # type: ignore[no-untyped-def]
    """`products` as `int8_products.Products` describes it."""
    room, row, tile, tiles = _room(), 0, 0, (rows + _ROWS - 1) // _ROWS
    while row < rows:
        count = share(rows - row, _ROWS)
        for first in range(0, steps, _STEPS):
            some = min(_STEPS, steps - first)
            _widen_rows(x + row * x_stride + STEP * first, x_stride, count, some, room)
            for group in range(outputs // GROUP):
                w = types.intp(weight + 4 * GROUP * (group * steps + first))
                out = types.intp(sums + row * sums_stride + 4 * GROUP * group)
                soon, hint = _hint(weight, steps, outputs, group, first, ahead, tile, tiles)
                _tile(count, room, _WIDE, w, some, out, sums_stride, soon, hint, first > 0)
        row, tile = row + count, tile + 1


@kernel
def _hint(weight, steps, outputs, group, first, ahead, tile, tiles):  # type: ignore[no-untyped-def]
    """What memory is asked for meanwhile, and how many bytes for each step: the group after this one; where several tiles
    of rows read the same weights, each asks for its share of what is ahead.
    """
    if tiles > 1:
        hint = 4 * GROUP // tiles
        return types.intp(ahead + hint * (tile * steps * outputs // GROUP + group * steps + first)), hint
    is_last = (group + 1) * GROUP == outputs
    soon = ahead if is_last else weight + 4 * GROUP * (group + 1) * steps
    return types.intp(soon + 4 * GROUP * first), 4 * GROUP


@kernel
def word_scores(words, stride, rows, weight, steps, scales, out, out_stride, ahead):  # type: ignore[no-untyped-def]
    """out[rows, 64], fp32, of words of 16 bits, rows of them `stride` bytes apart, a packed weight, and scales of its outputs.

    ahead: what is read next.
    """
    row, tile, tiles = 0, 0, (rows + _ROWS - 1) // _ROWS
    while row < rows:
        count = share(rows - row, _ROWS)
        for group in range(PAGE // GROUP):
            w, factors = types.intp(weight + 4 * GROUP * group * steps), types.intp(scales + 4 * GROUP * group)
            soon, hint = _hint(weight, steps, PAGE, group, 0, ahead, tile, tiles)
            mine, to = types.intp(words + row * stride), types.intp(out + row * out_stride + 4 * GROUP * group)
            _tile_of_scores(count, mine, stride, w, steps, to, out_stride, soon, hint, factors)
        row, tile = row + count, tile + 1


@kernel
def word_totals(words, stride, rows, pages, count, plane, outputs, totals):  # type: ignore[no-untyped-def]
    """totals[rows, outputs], fp64 and exact, of words of 16 bits and weights whose inputs, 64 each, lie `plane` bytes into each
    of `count` pages, whose addresses are at `pages`.
    """
    for i in range(rows * outputs):
        put_long(totals, i, 0)
    row = 0
    while row < rows:
        some = share(rows - row, _ROWS)
        for first in range(0, count, _PAGES):
            few, mine = min(_PAGES, count - first), types.intp(words + row * stride + 2 * PAGE * first)
            for group in range(outputs // GROUP):
                place, to = types.intp(plane + GROUP * PAGE * group), totals + 8 * (row * outputs + GROUP * group)
                these = types.intp(pages + 8 * first)
                _tile_of_totals(some, mine, stride, these, few, types.intp(to), 8 * outputs, place, 4 * GROUP, 0)
        row += some


@kernel
def _widen_rows(x, x_stride, rows, steps, room):  # type: ignore[no-untyped-def]
    for row in range(rows):
        _widen(types.intp(x + row * x_stride), types.intp(steps), types.intp(room + row * _WIDE))


@intrinsic
def _room(typing: Any) -> Any:
    """The address of room for a tile's wide inputs, until the caller returns."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        room: Any = cgutils.alloca_once  # which has no types
        return b.ptrtoint(room(b, ir.ArrayType(_INTS, _ROWS * _WIDE // 32)), I64)

    return types.intp(), codegen


@intrinsic
def _widen(typing: Any, x: Any, steps: Any, out: Any) -> Any:
    """The bytes of so many steps of a row as words. Addresses."""

    def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        x, steps, out = arguments
        whole = b.sdiv(steps, constant(4))

        def widen(index: Any, bytes_: int, offset: Any) -> list[Any]:
            at = b.add(b.mul(index, constant(bytes_)), offset)
            narrow, wide = ir.VectorType(I8, bytes_), ir.VectorType(ir.IntType(16), bytes_)
            store(b, b.zext(load(b, x, at, kind=narrow), wide), out, b.mul(at, constant(2)))
            return []

        loop(b, whole, [], lambda index, _: widen(index, 4 * STEP, constant(0)))
        loop(b, b.srem(steps, constant(4)), [], lambda index, _: widen(index, STEP, b.mul(whole, constant(4 * STEP))))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


class _Code:
    """The code of one tile: [rows, 16], of eight or sixteen outputs at a time, in registers until the end."""

    def __init__(self, b: Any, rows: int, arguments: Sequence[Any]) -> None:
        self._b, self._parts = b, 4 if rows <= 2 else 2
        x, stride, self._w, self._steps, self._out, self._out_stride, self._ahead, self._hint, self._last = arguments
        self._rows = [b.add(x, b.mul(stride, constant(row))) for row in range(rows)]

    def emit(self, kind: _Kind) -> None:
        write = {"products": self._write_sum, "scores": self._write_score, "totals": self._write_total}[kind]
        for first in range(0, 4, self._parts):
            zero = ir.Constant(_INTS, [0] * 8)
            sums = [zero] * (len(self._rows) * self._parts)
            if kind == "totals":
                sums = loop(self._b, self._steps, sums, partial(self._add_page, first))
            else:
                sums = self._added(self._w, self._steps, constant(0), self._ahead, first, sums)
            for index in range(0, len(sums), 2):
                row, part = divmod(index, self._parts)
                write(self._joined(*sums[index : index + 2]), row, first + part)

    def _add_page(self, first: int, index: Any, sums: list[Any]) -> list[Any]:
        b = self._b
        this, soon = page_and_next(b, self._w, index, self._steps)
        inputs = b.mul(index, constant(2 * PAGE))
        return self._added(
            b.add(this, self._ahead), constant(PAGE // STEP), inputs, b.add(soon, self._ahead), first, sums
        )

    def _added(self, weight: Any, steps: Any, inputs: Any, ahead: Any, first: int, sums: list[Any]) -> list[Any]:
        """The sums with so many steps more. inputs: how far into a row's words theirs begin; first: quarter of the outputs."""
        b, parts = self._b, self._parts

        def body(step: Any, sums: list[Any]) -> list[Any]:
            at, words = b.mul(step, constant(4 * GROUP)), b.add(inputs, b.mul(step, constant(2 * STEP)))
            if not first:
                prefetch(b, ahead, b.mul(step, self._hint))
            weights = [
                b.sext(load(b, weight, at, constant(16 * (first + part)), kind=_BYTES), _WORDS) for part in range(parts)
            ]
            spread = [b.bitcast(splat(b, load(b, row, words, kind=I64), 4), _WORDS) for row in self._rows]
            before = iter(sums)
            return [b.add(next(before), self._pairs(row, part)) for row in spread for part in weights]

        return loop(b, steps, sums, body)

    def _pairs(self, inputs: Any, weights: Any) -> Any:
        kind = ir.FunctionType(_INTS, [_WORDS, _WORDS])
        return self._b.call(self._b.module.declare_intrinsic("llvm.x86.avx2.pmadd.wd", (), kind), [inputs, weights])

    def _joined(self, *halves: Any) -> Any:
        """The sums of eight outputs, whose halves two vectors have side by side."""
        even, odd = (ir.Constant(_INTS, list(range(start, 16, 2))) for start in (0, 1))
        return self._b.add(*(self._b.shuffle_vector(*halves, which) for which in (even, odd)))

    def _place(self, row: int, part: int, size: int) -> Any:
        """Where a row's results of so many bytes lie, from a quarter of the outputs on."""
        b = self._b
        return b.add(self._out, b.add(b.mul(self._out_stride, constant(row)), constant(4 * size * part)))

    def _write_sum(self, sums: Any, row: int, part: int) -> None:
        b, place = self._b, self._place(row, part, 4)
        factor = splat(b, b.trunc(self._last, I32), 8)  # 1: there are sums already
        store(b, b.add(sums, b.mul(load(b, place, kind=_INTS), factor)), place)

    def _write_score(self, sums: Any, row: int, part: int) -> None:
        b = self._b
        scales = load(b, self._last, constant(16 * part), kind=_FLOATS)
        store(b, b.fmul(b.sitofp(sums, _FLOATS), scales), self._place(row, part, 4))

    def _write_total(self, sums: Any, row: int, part: int) -> None:
        b, place = self._b, self._place(row, part, 8)
        store(b, b.fadd(b.sitofp(sums, _DOUBLES), load(b, place, kind=_DOUBLES)), place)


def _tile_kernel(rows: int, kind: _Kind) -> Any:
    """A kernel (x, x_stride, w, steps, out, out_stride, ahead, hint, last) for so many rows of words.

    steps: of the weights at w; for each of them, memory is asked for at `ahead`, `hint` bytes further. last, of products:
    whether they are added to the sums at `out`; of scores: their scales. Totals are of pages, whose addresses are at w and
    whose weights begin `ahead` bytes into them, and are added to those at `out`.
    """

    @intrinsic
    def tile(
        typing: Any, x: Any, x_stride: Any, w: Any, steps: Any, out: Any, stride: Any, ahead: Any, hint: Any, last: Any
    ) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            _Code(b, rows, arguments).emit(kind)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9), codegen

    return tile


def _tiles_by_rows(kind: _Kind) -> Any:
    """The kernel for a number of rows, called with that number first."""
    one, two, three, four = (_tile_kernel(rows + 1, kind) for rows in range(_ROWS))

    @kernel
    def by_rows(rows, x, x_stride, w, steps, out, out_stride, ahead, hint, last):  # type: ignore[no-untyped-def]
        if rows == 1:
            one(x, x_stride, w, steps, out, out_stride, ahead, hint, last)
        elif rows == 2:
            two(x, x_stride, w, steps, out, out_stride, ahead, hint, last)
        elif rows == 3:
            three(x, x_stride, w, steps, out, out_stride, ahead, hint, last)
        else:
            four(x, x_stride, w, steps, out, out_stride, ahead, hint, last)

    return by_rows


_tile, _tile_of_scores, _tile_of_totals = (_tiles_by_rows(kind) for kind in ("products", "scores", "totals"))
