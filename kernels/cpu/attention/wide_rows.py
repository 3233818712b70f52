"""Attention's products of 16 bits: as two rows of bytes, or as rows of words on AVX2, which has no exact products of bytes.

Both give the same integers, so what comes out is the same to the bit.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from kernels.cpu.attention.two_bytes import join_scores, join_sums, split_bytes, split_pages
from kernels.cpu.attention.words import join_totals, split_page_words, split_words
from kernels.cpu.emit import get_long, kernel, put_int
from kernels.cpu.job import PAGE
from kernels.cpu.processor import Variant
from kernels.cpu.products.int8_products import products, sums_of_pages
from kernels.cpu.products.word_products import word_scores, word_totals

_ROW = 4 * PAGE  # bytes of a number for each position of a page
_ZERO = np.float32(32768.0)  # of a query's 16 bits: 128 of the upper byte, which the offsets of keys take away again
_ONES = np.int32(0x00010001)  # two words


class WideRows(NamedTuple):
    """Kernels for the rows of some outputs, heads of queries, one after another; addresses, and strides in bytes.

    put_query(x, step, dim, rows, output, outputs): the row of an output: round(x * step), fp32 [dim], of at most 32,767.
    score(rows, outputs, dim, pages, plane, used, parts, scores, s_stride): scores [outputs, positions], fp32, of queries and
        the keys of pages, with the keys' scales.
    put_weights(x, step, used, rows, stride, output, outputs): the row of an output: round(x * step), up to 65,535, of each
        position of so many pages.
    mix(rows, stride, outputs, pages, used, plane, dim, parts, is_first): sums of values by these weights, into `parts`.
        is_first: of calls for the same pages.
    mixed(parts, output, outputs, dim, at, factor, out): 64 of an output's sums times a factor; returns the largest magnitude.
    """

    put_query: Any
    score: Any
    put_weights: Any
    mix: Any
    mixed: Any


def wide_rows_of(kind: Variant) -> WideRows:
    """The kernels for a kind of processor."""
    if kind == "avx2":
        return WideRows(_put_query_words, _score_words, _put_weight_words, _mix_words, _mixed_words)
    return WideRows(_put_query_bytes, _score_bytes, _put_weight_bytes, _mix_bytes, _mixed_bytes)


@kernel
def _put_query_bytes(query, step, dim, rows, output, outputs):  # type: ignore[no-untyped-def]
    high = types.intp(rows + output * dim)
    split_bytes(types.intp(query), step, _ZERO, types.intp(dim), high, types.intp(high + outputs * dim))


@kernel
def _score_bytes(rows, outputs, dim, pages, plane, used, parts, scores, s_stride):  # type: ignore[no-untyped-def]
    for page in range(used):
        keys, ahead = get_long(pages, page) + plane, get_long(pages, min(page + 1, used - 1)) + plane
        numbers = keys + 2 * PAGE * dim
        products(rows, dim, 2 * outputs, keys, dim // 4, PAGE, parts, _ROW, ahead)
        high, out = types.intp(parts), types.intp(scores + page * _ROW)
        join_scores(high, high + outputs * _ROW, outputs, numbers + _ROW, numbers, out, types.intp(s_stride))


@kernel
def _put_weight_bytes(weights, step, used, rows, stride, output, outputs):  # type: ignore[no-untyped-def]
    high = types.intp(rows + output * stride)
    split_pages(types.intp(weights), step, types.intp(used), high, types.intp(high + outputs * stride))


@kernel
def _mix_bytes(rows, stride, outputs, pages, used, plane, dim, parts, is_first):  # type: ignore[no-untyped-def]
    sums_of_pages(rows, stride, 2 * outputs, pages, used, plane, dim, parts, 4 * dim)


@kernel
def _mixed_bytes(parts, output, outputs, dim, at, factor, out):  # type: ignore[no-untyped-def]
    high = types.intp(parts + 4 * (output * dim + at))
    return join_sums(high, types.intp(high + 4 * outputs * dim), factor, types.intp(out))


@kernel
def _put_query_words(query, step, dim, rows, output, outputs):  # type: ignore[no-untyped-def]
    split_words(types.intp(query), step, types.intp(dim), types.intp(rows + 2 * output * dim))


@kernel
def _score_words(rows, outputs, dim, pages, plane, used, parts, scores, s_stride):  # type: ignore[no-untyped-def]
    for page in range(used):
        keys, ahead = get_long(pages, page) + plane, get_long(pages, min(page + 1, used - 1)) + plane
        scales = keys + 2 * PAGE * dim
        word_scores(rows, 2 * dim, outputs, keys, dim // 4, scales, scores + page * _ROW, s_stride, ahead)


@kernel
def _put_weight_words(weights, step, used, rows, stride, output, outputs):  # type: ignore[no-untyped-def]
    """Behind a row of words that are all 1."""
    split_page_words(types.intp(weights), step, types.intp(used), types.intp(rows + 2 * stride * (1 + output)))


@kernel
def _mix_words(rows, stride, outputs, pages, used, plane, dim, parts, is_first):  # type: ignore[no-untyped-def]
    known = 0 if is_first else 1
    if is_first:
        for i in range(used * PAGE // 2):
            put_int(rows, i, _ONES)
    word_totals(
        rows + 2 * stride * known,
        2 * stride,
        1 + outputs - known,
        pages,
        used,
        plane,
        dim,
        parts + 8 * dim * known,
    )


@kernel
def _mixed_words(parts, output, outputs, dim, at, factor, out):  # type: ignore[no-untyped-def]
    totals = types.intp(parts + 8 * (dim * (1 + output) + at))
    return join_totals(totals, types.intp(parts + 8 * at), factor, types.intp(out))
