"""A decoder layer of a draft head, over keys and values of its own: queries, attention and SwiGLU for a few rows.

What differs between heads is told by addresses: which rows a row sees, what its queries, keys and values are projected
from, and whether the stream is normed before that.
"""

import math
from typing import NamedTuple

import numpy as np

from kernels.cpu.emit import get, get_int, get_long, kernel, put, read_record
from kernels.cpu.head_linear import Matrix, linear, linear_scratch
from kernels.cpu.job import BLOCK, PAGE
from kernels.cpu.phases import copy, norm, rotate
from kernels.cpu.swiglu import swiglu
from kernels.cpu.tree_attention import attend

_ONE = np.float32(1.0)


class Layer(NamedTuple):
    """A layer's weights. Heads are padded to `dim`, a multiple of 64, their halves apart."""

    qkv: Matrix
    output: Matrix
    gates: Matrix  # all gates, then all ups
    down: Matrix
    heads: int
    kv_heads: int
    dim: int
    true_dim: int
    qk_norms: int  # fp32 [2, dim], or 0
    eps: float
    plane: int  # how far into a page its keys and values begin, in bytes


class Rows(NamedTuple):
    """What a layer is fed: rows of one text, or of several, one text after the other. Row i goes to `slots[i]` of its pages."""

    fed: int
    inputs: int  # fp32 [fed, parts * inputs of qkv]
    x: int  # fp32 [fed, hidden]: the stream, to which the layer adds
    cos: int  # fp32 [fed, dim / 2]
    sin: int
    slots: int  # int32 [fed]
    pages: int  # int64 [fed]: address of its text's list of pages
    texts: int  # int64 [text_count, fields of `Text`]
    text_count: int
    scratch: int  # see `layer_scratch`
    score_stride: int  # bytes, for the longest text


class Text(NamedTuple):
    """A text's part in the rows. Each row sees the `before` first slots, and of the text's own rows those of `own`."""

    row: int  # the first of them
    rows: int
    pages: int  # int64: addresses of the pages
    before: int
    first: int  # rows of `own` and `counts` that precede the first
    own: int  # int32 [first + rows, ...]: the rows that each sees, ascending, counted from `before` on; 0: a chain
    own_stride: int  # bytes
    counts: int  # int32 [first + rows]: how many those are


TEXT = len(Text._fields)


@kernel
def context_rows(layer_table, rows_table):  # type: ignore[no-untyped-def]
    """Keys and values of rows that are nothing else: those of a block head's context. Tables: see `table_of`."""
    layer, rows = read_record(layer_table, Layer), read_record(rows_table, Rows)
    width = 2 * layer.kv_heads * layer.dim
    stride = 4 * layer.qkv.inputs * layer.qkv.parts
    rest = rows.scratch + 4 * rows.fed * width
    linear(
        layer.qkv, layer.heads * layer.dim, width, rows.inputs, stride, rows.fed, rows.scratch, 4 * width, False, rest
    )
    for row in range(rows.fed):
        _remember(layer, rows, row, rows.scratch + 4 * row * width)


@kernel
def layer_rows(layer_table, rows_table):  # type: ignore[no-untyped-def]
    """A layer's forward: the rows' keys and values go to their slots, its output into the stream."""
    layer, rows = read_record(layer_table, Layer), read_record(rows_table, Rows)
    queries, width = layer.heads * layer.dim, (layer.heads + 2 * layer.kv_heads) * layer.dim
    qkv, mixed = rows.scratch, rows.scratch + 4 * rows.fed * width
    rest = mixed + 4 * rows.fed * max(queries, 2 * layer.down.inputs)
    stride, hidden = 4 * layer.qkv.inputs * layer.qkv.parts, layer.output.outputs
    linear(layer.qkv, 0, width, rows.inputs, stride, rows.fed, qkv, 4 * width, False, rest)
    factor = np.float32(math.log2(math.e) / math.sqrt(layer.true_dim))
    for row in range(rows.fed):
        mine = qkv + 4 * row * width
        for head in range(layer.heads):
            _position(layer, rows, 0, row, mine + 4 * head * layer.dim, factor)
        _remember(layer, rows, row, mine + 4 * queries)
    for index in range(rows.text_count):
        text = read_record(rows.texts + 8 * TEXT * index, Text)
        for kv_head in range(layer.kv_heads):
            _attend(layer, rows, text, kv_head, qkv, width, mixed, rest)
    linear(layer.output, 0, hidden, mixed, 4 * queries, rows.fed, rows.x, 4 * hidden, True, rest)
    inner, pair = layer.down.inputs, 8 * layer.down.inputs
    linear(layer.gates, 0, 2 * inner, rows.x, 4 * hidden, rows.fed, mixed, pair, False, rest)
    for row in range(rows.fed):
        gates = mixed + row * pair
        swiglu(gates, gates + 4 * inner, inner, gates)
    linear(layer.down, 0, hidden, mixed, pair, rows.fed, rows.x, 4 * hidden, True, rest)


@kernel
def _position(layer, rows, kind, row, head, factor):  # type: ignore[no-untyped-def]
    """Norm (kind 0: of queries, 1: of keys) and rotation of a head."""
    if layer.qk_norms != 0:
        weight = layer.qk_norms + 4 * kind * layer.dim
        norm(head, layer.dim, layer.true_dim, layer.eps, weight)
    half = layer.dim // 2
    rotate(head, half, rows.cos + 4 * row * half, rows.sin + 4 * row * half, factor)


@kernel
def _remember(layer, rows, row, keys):  # type: ignore[no-untyped-def]
    """A row's keys, which values follow, into its slot."""
    slot, dim = get_int(rows.slots, row), layer.dim
    page, at = get_long(get_long(rows.pages, row), slot // PAGE) + layer.plane, slot % PAGE
    for head in range(layer.kv_heads):
        plane, key = page + 8 * head * PAGE * dim, keys + 4 * head * dim
        _position(layer, rows, 1, row, key, _ONE)
        for i in range(dim):
            put(plane, i * PAGE + at, get(key, i))
        copy(key + 4 * layer.kv_heads * dim, dim, plane + 4 * (PAGE + at) * dim)


@kernel
def _attend(layer, rows, text, kv_head, qkv, width, out, scratch):  # type: ignore[no-untyped-def]
    """Attention of the query heads that share a head of keys, for all rows of a text."""
    group = layer.heads // layer.kv_heads
    some, stop = group * layer.dim, text.first + text.rows
    queries, mixed = scratch, scratch + 4 * text.rows * some
    sums = mixed + 4 * text.rows * some
    scores = sums + 4 * (text.rows * group + stop + BLOCK)
    plane = layer.plane + 8 * kv_head * PAGE * layer.dim
    for row in range(text.rows):
        copy(qkv + 4 * ((text.row + row) * width + kv_head * some), some, queries + 4 * row * some)
    attend(
        queries,
        group,
        layer.dim,
        text.pages,
        plane,
        text.before,
        text.first,
        stop,
        text.own,
        text.own_stride,
        text.counts,
        scores,
        rows.score_stride,
        sums,
        mixed,
    )
    for row in range(text.rows):
        place = (text.row + row) * layer.heads * layer.dim + kv_head * some
        copy(mixed + 4 * row * some, some, out + 4 * place)


def layer_scratch(layer: Layer, rows: int, text_rows: int, own_rows: int, score_stride: int) -> int:
    """Bytes that the kernels need for so many rows, of which no text has more than `text_rows`; those see at most `own_rows`
    besides what went before."""
    queries, width = layer.heads * layer.dim, (layer.heads + 2 * layer.kv_heads) * layer.dim
    inner, outputs = layer.down.inputs, text_rows * layer.heads // layer.kv_heads
    attention = 4 * (2 * outputs * layer.dim + outputs + own_rows + BLOCK) + outputs * score_stride
    widest = max(layer.qkv.inputs, layer.output.inputs, layer.gates.inputs, inner)
    return 4 * rows * (width + max(queries, 2 * inner)) + max(attention, linear_scratch(rows, widest)) + BLOCK
