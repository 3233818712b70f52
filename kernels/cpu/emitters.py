"""One step of a product for each kind of processor, and products whose sums stay in registers.

A step multiplies four inputs of a row with those of sixteen outputs and adds to sums. A product keeps rows x outputs of sums in
registers, as many as the processor has. AVX2 has no such instruction: see `word_products`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import binding, ir
from numba import types

from kernels.cpu.emit import I8, I32, constant, intrinsic, kernel, load, loop, page_and_next, prefetch, splat, store
from kernels.cpu.job import GROUP, PAGE, STEP
from kernels.cpu.processor import Variant

_TAKES_BYTES = binding.llvm_version_info[0] >= 21  # the type of the dot product's operands changed in LLVM 21


class _DotProducts:
    """`vpdpbusd`: four products of a lane added to its sum in one instruction."""

    def __init__(self, kind: Variant) -> None:
        self.lanes = 8 if kind == "avx_vnni" else 16  # sums of a register
        self.parts = GROUP // self.lanes  # registers of a group
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
        for place in range(STEP):
            total = b.add(total, b.shuffle_vector(each, each, ir.Constant(self.sums, list(range(place, 16, STEP)))))
        return total


EMITTERS: dict[Variant, Callable[[Variant], Any]] = {
    "amx_int8": _DotProducts,
    "avx512_vnni": _DotProducts,
    "avx_vnni": _DotProducts,
    "neon_i8mm": _MixedDots,
    "neon_dot": _SignedDots,
    "generic": _Plain,
}


class _Tile(NamedTuple):
    rows: int  # at most
    groups: int  # of 16 outputs


_TILES: dict[Variant, _Tile] = {
    "amx_int8": _Tile(6, 4),  # for the rows that its tiles do not pay for
    "avx512_vnni": _Tile(6, 4),
    "avx_vnni": _Tile(3, 2),
    "neon_i8mm": _Tile(3, 2),
    "neon_dot": _Tile(3, 2),
    "generic": _Tile(3, 1),
}


def register_products(kind: Variant) -> Any:
    """`products` as `int8_products.Products` describes it."""
    tile = _TILES[kind]
    width, most, by_rows = tile.groups * GROUP, tile.rows, _by_rows(kind, False)

    @kernel
    def products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride, ahead):  # type: ignore[no-untyped-def]
        for first in range(0, outputs, width):
            w = types.intp(weight + first * steps * STEP)
            soon = types.intp(w + width * steps * STEP if first + width < outputs else ahead)
            row = 0
            while row < rows:
                count = share(rows - row, most)
                a, out = types.intp(x + row * x_stride), types.intp(sums + row * sums_stride + 4 * first)
                by_rows(count, a, x_stride, w, steps, out, sums_stride, soon)
                row, soon = row + count, w  # asked for once

    return products


def register_sums_of_pages(kind: Variant) -> Any:
    """`sums_of_pages` as `int8_products.Products` describes it."""
    tile = _TILES[kind]
    width, most, by_rows = tile.groups * GROUP, tile.rows, _by_rows(kind, True)

    @kernel
    def sums_of_pages(x, x_stride, rows, pages, count, plane, outputs, sums, sums_stride):  # type: ignore[no-untyped-def]
        for first in range(0, outputs, width):
            row = 0
            while row < rows:
                some = share(rows - row, most)
                a, out = types.intp(x + row * x_stride), types.intp(sums + row * sums_stride + 4 * first)
                by_rows(some, a, x_stride, pages, count, out, sums_stride, types.intp(plane + first * PAGE))
                row += some

    return sums_of_pages


@kernel
def share(left, most):  # type: ignore[no-untyped-def]
    """Rows to take at a time, at most so many: the last two shares are about equal."""
    return min(most if left >= 2 * most or left <= most else (left + 1) // 2, left)


def _by_rows(kind: Variant, is_paged: bool) -> Any:
    """The kernel for a number of rows, called with that number first."""
    kernels = [_tile_kernel(kind, rows + 1, is_paged) for rows in range(_TILES[kind].rows)]
    one, two, three = kernels[:3]
    four, five, six = kernels[3:] if len(kernels) == 6 else kernels

    @kernel
    def by_rows(rows, x, x_stride, w, steps, out, out_stride, ahead):  # type: ignore[no-untyped-def]
        if rows == 1:
            one(x, x_stride, w, steps, out, out_stride, ahead)
        elif rows == 2:
            two(x, x_stride, w, steps, out, out_stride, ahead)
        elif rows == 3:
            three(x, x_stride, w, steps, out, out_stride, ahead)
        elif rows == 4:
            four(x, x_stride, w, steps, out, out_stride, ahead)
        elif rows == 5:
            five(x, x_stride, w, steps, out, out_stride, ahead)
        else:
            six(x, x_stride, w, steps, out, out_stride, ahead)

    return by_rows


class _Code:
    """The code of one tile: sums[rows, groups x 16], all in registers until the end."""

    def __init__(self, b: Any, kind: Variant, rows: int, arguments: Sequence[Any]) -> None:
        self._b, self._groups, self._emit = b, range(_TILES[kind].groups), EMITTERS[kind](kind)
        x, x_stride, self._w, self._steps, self._out, self._out_stride, self._ahead = arguments
        self._rows = [b.add(x, b.mul(x_stride, constant(row))) for row in range(rows)]

    def emit(self, is_paged: bool) -> None:
        b, emit = self._b, self._emit
        sums = [ir.Constant(emit.sums, [0] * emit.lanes)] * (len(self._rows) * len(self._groups) * emit.parts)
        if is_paged:
            sums = loop(b, self._steps, sums, self._add_page)
        else:
            sums = self._added(self._w, self._steps, constant(0), self._ahead, sums)
        for row in range(len(self._rows)):
            for group in self._groups:
                first = (row * len(self._groups) + group) * emit.parts
                place = b.add(b.mul(self._out_stride, constant(row)), constant(64 * group))
                emit.write(b, sums[first : first + emit.parts], b.add(self._out, place))

    def _add_page(self, index: Any, sums: list[Any]) -> list[Any]:
        b = self._b
        this, soon = page_and_next(b, self._w, index, self._steps)
        inputs, steps = b.mul(index, constant(PAGE)), constant(PAGE // STEP)
        return self._added(b.add(this, self._ahead), steps, inputs, b.add(soon, self._ahead), sums)

    def _added(self, weight: Any, steps: Any, inputs: Any, ahead: Any, sums: list[Any]) -> list[Any]:
        """The sums with so many steps more. inputs: how far into the rows theirs begin."""
        b, emit, groups = self._b, self._emit, self._groups
        starts = [b.add(weight, b.mul(b.mul(steps, constant(64)), constant(group))) for group in groups]

        def body(step: Any, sums: list[Any]) -> list[Any]:
            at, first = b.mul(step, constant(64)), b.add(inputs, b.mul(step, constant(STEP)))
            weights = [part for start in starts for part in emit.weights(b, b.add(start, at))]
            for group in groups:
                prefetch(b, ahead, b.mul(at, constant(len(groups))), constant(64 * group))
            spread = [emit.inputs(b, load(b, row, first, kind=I32)) for row in self._rows]
            before = iter(sums)
            return [emit.add(b, next(before), row, part) for row in spread for part in weights]

        return loop(b, steps, sums, body)


def _tile_kernel(kind: Variant, rows: int, is_paged: bool) -> Any:
    """A kernel (x, x_stride, w, steps, out, out_stride, ahead) for so many rows.

    steps: of the weights at w; as many bytes as they have are asked for at `ahead` meanwhile. is_paged: pages, whose
    addresses are at w and whose weights begin `ahead` bytes into them.
    """

    @intrinsic
    def tile(typing: Any, x: Any, x_stride: Any, w: Any, steps: Any, out: Any, out_stride: Any, ahead: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            _Code(b, kind, rows, arguments).emit(is_paged)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), codegen

    return tile
