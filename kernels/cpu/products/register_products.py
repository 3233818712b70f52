"""Products whose sums stay in registers, rows x outputs at a time, as many as the processor has."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from kernels.cpu.emit import I32, I64, constant, intrinsic, kernel, load, loop, prefetch
from kernels.cpu.job import GROUP, PAGE, STEP
from kernels.cpu.processor import Variant
from kernels.cpu.products.emitters import EMITTERS


class _Tile(NamedTuple):
    rows: int  # at most
    groups: int  # of 16 outputs


_TILES: dict[Variant, _Tile] = {
    "amx_int8": _Tile(6, 4),  # for the rows that its tiles do not pay for
    "avx512_vnni": _Tile(6, 4),
    "avx_vnni": _Tile(3, 2),
    "avx2": _Tile(3, 1),
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
                count = _share(rows - row, most)
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
                some = _share(rows - row, most)
                a, out = types.intp(x + row * x_stride), types.intp(sums + row * sums_stride + 4 * first)
                by_rows(some, a, x_stride, pages, count, out, sums_stride, types.intp(plane + first * PAGE))
                row += some

    return sums_of_pages


@kernel
def _share(left, most):  # type: ignore[no-untyped-def]
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


def _tile_kernel(kind: Variant, rows: int, is_paged: bool) -> Any:
    """sums[rows, groups x 16] of one tile, all in registers until the end.

    Of `steps` steps of weights at w; as many bytes as they have are asked for at `ahead` meanwhile. is_paged: of as many
    pages, whose addresses are at w and whose weights begin `ahead` bytes into them.
    """
    groups = _TILES[kind].groups
    emit = EMITTERS[kind](kind)

    @intrinsic
    def tile(typing: Any, x: Any, x_stride: Any, w: Any, steps: Any, out: Any, out_stride: Any, ahead: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            x, x_stride, w, steps, out, out_stride, ahead = arguments
            row_starts = [b.add(x, b.mul(x_stride, constant(row))) for row in range(rows)]
            zeros = [ir.Constant(emit.sums, [0] * emit.lanes)] * (rows * groups * emit.parts)

            def sums_of(weight: Any, count: Any, inputs: Any, asked: Any, sums: list[Any]) -> list[Any]:
                starts = [b.add(weight, b.mul(b.mul(count, constant(64)), constant(group))) for group in range(groups)]

                def body(step: Any, sums: list[Any]) -> list[Any]:
                    at = b.mul(step, constant(64))
                    flat = [part for start in starts for part in emit.weights(b, b.add(start, at))]
                    for group in range(groups):
                        prefetch(b, asked, b.mul(at, constant(groups)), constant(64 * group))
                    first = b.add(inputs, b.mul(step, constant(STEP)))
                    spread = [emit.inputs(b, load(b, start, first, kind=I32)) for start in row_starts]
                    before = iter(sums)
                    return [emit.add(b, next(before), row, part) for row in spread for part in flat]

                return loop(b, count, sums, body)

            def page(index: Any, sums: list[Any]) -> list[Any]:
                last = b.sub(steps, constant(1))
                following = b.select(b.icmp_signed("<", index, last), b.add(index, constant(1)), last)
                this, soon = (load(b, w, b.mul(each, constant(8)), kind=I64) for each in (index, following))
                inputs, count = b.mul(index, constant(PAGE)), constant(PAGE // STEP)
                return sums_of(b.add(this, ahead), count, inputs, b.add(soon, ahead), sums)

            sums = loop(b, steps, zeros, page) if is_paged else sums_of(w, steps, constant(0), ahead, zeros)
            for row in range(rows):
                for group in range(groups):
                    first = (row * groups + group) * emit.parts
                    place = b.add(b.mul(out_stride, constant(row)), constant(64 * group))
                    emit.write(b, sums[first : first + emit.parts], b.add(out, place))
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), codegen

    return tile
