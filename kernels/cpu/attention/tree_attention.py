"""Attention of draft trees over the keys and values of a sequence: a row sees all that was cached, and its ancestors.

Keys and values lie in pages of 64 positions. A page's part of one layer and head is keys [dim, 64], so that a score's
sum runs over dim while positions fill the vectors, and then values [64, dim]. A draft's rows lie behind what is cached
in the order in which they were fed; siblings stand side by side, so a row's ancestors need not be neighbours.

A row's scores are moved to where they would stand in a chain before anything is summed over positions, and what it
mixes comes in the same order: a row is the same to the bit in a chain, in any tree, and with any part of it cached.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernels.cpu.attention.score_weights import fill, gather, scatter
from kernels.cpu.emit import LANES, get, get_int, get_long, kernel, largest, put
from kernels.cpu.job import PAGE
from kernels.cpu.swiglu import exponentials
from kernels.cpu.weighted_sums import weighted_sums

_ZERO, _ONE, _NEVER = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)
_ROW_BYTES = 4 * PAGE


@kernel
def attend(  # type: ignore[no-untyped-def]
    queries, heads, dim, pages, plane, before, first, stop, own, own_stride, counts, scores, s_stride, sums, mixed
):
    """`heads` query heads that share keys, for the rows [first, stop) of a sequence; addresses, strides in bytes.

    queries [rows, heads, dim], rotated and times log2(e) / sqrt(dim). pages: addresses (int64) of the sequence's pages;
    plane: how far into a page the keys of this layer and head begin. before: positions cached. own [stop, ...], int32:
    for each row its ancestors' rows and itself, ascending; 0: a chain. counts [stop], int32: how many those are.
    scores, sums: room for [rows x heads, positions] and for rows x heads + stop floats. mixed [rows, heads, dim]: the
    result.
    """
    limit, outputs = before + stop, (stop - first) * heads
    pages_used = (limit + PAGE - 1) // PAGE
    ahead = get_long(pages, 0) + plane
    for page in range(pages_used):
        keys, ahead = ahead, _ahead(pages, page, pages_used, plane, dim)
        weighted_sums(
            queries, 4 * dim, outputs, keys, _ROW_BYTES, dim, scores + page * _ROW_BYTES, s_stride, PAGE, False, ahead
        )
    for output in range(outputs):
        row = first + output // heads
        ancestors = own + row * own_stride if own else 0
        total = before + get_int(counts, row)
        weight = softmax(scores + output * s_stride, before, total, limit, ancestors, sums + 4 * outputs)
        put(sums, output, np.float32(1.0) / weight)
    for page in range(pages_used):
        values, ahead = ahead, _ahead(pages, page, pages_used, plane + _ROW_BYTES * dim, dim)
        weights, some = scores + page * _ROW_BYTES, min(PAGE, limit - page * PAGE)
        weighted_sums(weights, s_stride, outputs, values, 4 * dim, some, mixed, 4 * dim, dim, page > 0, ahead)
    for output in range(outputs):
        share = get(sums, output)
        for i in range(output * dim, (output + 1) * dim):
            put(mixed, i, get(mixed, i) * share)


@kernel
def _ahead(pages, page, count, plane, dim):  # type: ignore[no-untyped-def]
    """What is read after a page's keys or values, which begin `plane` into it: the next page's, or the first page's values."""
    return get_long(pages, page + 1) + plane if page + 1 < count else get_long(pages, 0) + plane + _ROW_BYTES * dim


@kernel
def softmax(scores, before, total, limit, ancestors, compact):  # type: ignore[no-untyped-def]
    """Scores of a row over `limit` positions become weights, 0 where it does not see; returns their sum.

    total: positions that it sees, `before` of them cached. ancestors: its own rows, 0 for a chain.
    """
    if ancestors:
        gather(scores, before, total, ancestors)
    padded = (total + LANES - 1) // LANES * LANES
    fill(scores, total, padded, _NEVER)
    top = largest(scores, padded)
    place = types.intp(scores)
    weight = exponentials(place, padded, top, _ONE, place)
    fill(scores, padded, limit, _ZERO)
    if ancestors:
        scatter(scores, before, total, ancestors, compact)
    return weight


Floats = npt.NDArray[np.float32]


def attend_reference(queries: Floats, keys: Floats, values: Floats, before: int, seen: Any) -> Floats:
    """queries [rows, heads, dim], scaled for base 2; keys, values [before + rows, dim]; seen [rows, rows], bool.

    In fp64, without the kernel's order.
    """
    visible = np.concatenate([np.ones((len(queries), before), bool), np.asarray(seen, bool)], 1)
    scores = np.einsum("rhd,pd->rhp", queries.astype(np.float64), keys.astype(np.float64))
    scores = np.where(visible[:, None], scores, -np.inf)
    weights = np.exp2(scores - scores.max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    out: Floats = np.einsum("rhp,pd->rhd", weights, values.astype(np.float64)).astype(np.float32)
    return out
