"""Exact products of eight-bit inputs and weights, for one row or many.

A weight [outputs, inputs] is packed as [outputs / 16, inputs / 4, 16, 4]: 64 bytes hold four inputs of sixteen outputs.
Inputs are stored plus 128; what that adds to a sum is 128 times the sum of the weight's row, which `rescale` subtracts.
Sums of integers are exact, so a row's result is the same to the bit in any batch, and on every processor.

Every variant keeps as many sums in registers as there are: rows x outputs. AVX2 has no such product; there 16-bit ones
are used (`word_products`), which are exact as well (the 8-bit ones of that time saturate). ARM has products of signed
bytes, newer ones of unsigned and signed bytes; the generic variant multiplies 32-bit numbers and runs everywhere.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cpu.emit import kernel
from kernels.cpu.emitters import register_products, register_sums_of_pages
from kernels.cpu.job import GROUP, STEP
from kernels.cpu.processor import Variant, variant
from kernels.cpu.tile_products import TILE_STEPS, prepare_tiles, release_tiles, tile_products, tile_sums_of_pages
from kernels.cpu.word_products import word_products

_LEAST_TILED = 5  # rows from which matrix tiles are faster than registers


def unpack(packed: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """What `pack` was given."""
    groups, steps = packed.shape[:2]
    return packed.transpose(0, 2, 1, 3).reshape(groups * GROUP, steps * STEP)


def products_reference(x: npt.NDArray[np.uint8], packed: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    """x [rows, inputs] times a packed weight, 128 still in it -> [rows, outputs]."""
    return x.astype(np.int32) @ unpack(packed).T.astype(np.int32)


class Products(NamedTuple):
    """Kernels for one kind of processor; addresses, and strides in bytes.

    products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride, ahead): sums[rows, outputs], int32, of x[rows, 4
        steps], uint8, and a packed weight, for at most 32 rows, and outputs in multiples of 64. The weight's block stays
        in the first cache while rows go by. ahead: what is read next, which memory is asked for meanwhile.
    sums_of_pages(x, x_stride, rows, pages, count, plane, outputs, sums, sums_stride): the same of weights whose inputs, 64
        each, lie `plane` bytes into each of `count` pages, whose addresses are at `pages`.
    prepare(rows, ready): has to be called before, where the last call (0: none yet) was for other rows; returns the rows.
    release(): has to be called after the last products.
    """

    products: Any
    sums_of_pages: Any
    prepare: Any
    release: Any


def products_of(kind: Variant) -> Products:
    """The kernels for a kind of processor."""
    if kind == "avx2":
        # Attention takes products of words there (`wide_rows`), so those of pages need not be fast.
        return Products(word_products, register_sums_of_pages("generic"), _prepare, _release)
    products, sums_of_pages = register_products(kind), register_sums_of_pages(kind)
    if kind == "amx_int8":
        return _tiled(products, sums_of_pages)
    return Products(products, sums_of_pages, _prepare, _release)


@kernel
def _prepare(rows, ready):  # type: ignore[no-untyped-def]
    return rows


@kernel
def _release():  # type: ignore[no-untyped-def]
    pass


def _tiled(by_registers: Any, pages_by_registers: Any) -> Products:
    """Matrix tiles where there are enough rows, and inputs that fill them."""

    @kernel
    def products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride, ahead):  # type: ignore[no-untyped-def]
        if rows < _LEAST_TILED or steps % TILE_STEPS != 0:
            by_registers(x, x_stride, rows, weight, steps, outputs, sums, sums_stride, ahead)
        else:
            tile_products(x, x_stride, rows, weight, steps, outputs, sums, sums_stride, ahead)

    @kernel
    def sums_of_pages(x, x_stride, rows, pages, count, plane, outputs, sums, sums_stride):  # type: ignore[no-untyped-def]
        if rows < _LEAST_TILED:
            pages_by_registers(x, x_stride, rows, pages, count, plane, outputs, sums, sums_stride)
        else:
            tile_sums_of_pages(x, x_stride, rows, pages, count, plane, outputs, sums, sums_stride)

    @kernel
    def prepare(rows, ready):  # type: ignore[no-untyped-def]
        return prepare_tiles(rows, ready) if rows >= _LEAST_TILED else ready

    return Products(products, sums_of_pages, prepare, release_tiles)


products, sums_of_pages, prepare, release = products_of(variant() or "generic")
