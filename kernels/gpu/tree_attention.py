"""Attention of draft trees: a row sees all its sequence's tokens before the rows, and among the rows its ancestors.

It is an online softmax over contiguous keys and values, and before them those of a prefix that sequences share. They are split
among programs if there are few rows (Flash-Decoding, Dao et al. 2023), and heads that share keys are folded into the rows.
Earlier tokens need no mask: only the rows' own N x N part has one.

How many programs share a sequence's keys depends on how many keys it has, also within a captured graph, whose grid has room for
the most: the others end at once and leave no part. Parts stay in fp32, because they are rounded once more when they are summed.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.gpu.ragged import Ragged
from kernels.gpu.rope import read_rows, scales_of
from kernels.gpu.tables import on_triton, padded

_PROGRAMS = 264  # two for each multiprocessor of an H100 or H200
_MOST_SPLITS = 32
_MOST_QUERIES = 64  # folded rows of a program
_KEYS = 64  # of a tile
_LEAST_KEYS = tl.constexpr(128)  # of a split: with fewer, a program's start and its part cost more than the keys


def tree_attention(query: Tensor, ragged: Ragged, layer: int, kv_heads: int, splits: int = 0) -> Tensor:
    """query [rows, heads, dim], contiguous, with the rows' own keys and values already in their tables -> [rows, heads, dim].

    The output of rows that belong to no sequence is undefined. splits: the most programs among which a sequence's keys are
    divided, a power of two, if there are enough; 0 chooses it by the shape.
    """
    if not on_triton(query):
        return tree_attention_reference(query, ragged, layer, kv_heads)
    rows, heads, dim = query.shape
    group = heads // kv_heads
    queries = min(_MOST_QUERIES, padded(ragged.width * group))
    blocks = ragged.sequences * triton.cdiv(ragged.width, queries // group)
    splits = splits or padded(max(1, min(_MOST_SPLITS, _PROGRAMS // (blocks * kv_heads))), 1)
    out = torch.empty_like(query)
    # Of each split: its output, not yet divided by its softmax's sum; the logarithmic maximum and that sum.
    mixed = query.new_empty(splits, rows, heads, dim, dtype=torch.float32) if splits > 1 else out
    softmax = query.new_empty(splits, rows, heads, 2, dtype=torch.float32)
    _attend[(blocks, kv_heads, splits)](
        query,
        mixed,
        softmax,
        ragged.seen,
        ragged.address,
        ragged.capacity,
        ragged.first,
        ragged.count,
        ragged.before,
        ragged.causal,
        ragged.prefix,
        ragged.prefix_capacity,
        ragged.shared,
        layer,
        math.log2(math.e) / math.sqrt(dim),
        rows,
        ragged.width,
        KV_HEADS=kv_heads,
        GROUP=group,
        DIM=dim,
        BLOCK_DIM=padded(dim),
        QUERIES=queries,
        KEYS=_KEYS,
        SPLITS=splits,
        SCALES_AT=ragged.scales_at,
        num_stages=2,  # so that two programs fit on a multiprocessor
    )
    if splits > 1:
        _combine[(rows, heads)](
            mixed,
            softmax,
            out,
            ragged.owner,
            ragged.count,
            ragged.before,
            rows * heads,
            DIM=dim,
            BLOCK_DIM=padded(dim),
            SPLITS=splits,
        )
    return out


def tree_attention_reference(query: Tensor, ragged: Ragged, layer: int, kv_heads: int) -> Tensor:
    """The same with torch's own attention, one sequence after another, each with a dense mask."""
    out, first = torch.empty_like(query), 0
    for part in ragged.parts:
        count = len(part.tokens)
        planes = range(2 * layer * kv_heads, 2 * (layer + 1) * kv_heads)
        stored = [(part.prefix, part.shared), (part.table, part.slots.stop)]
        found = [
            read_rows(table, planes, end, ragged.scales_at, query.dtype) for table, end in stored if table is not None
        ]
        keys, values = torch.cat(found, 1).chunk(2)
        own = torch.ones(count, count, dtype=torch.bool).tril() if part.seen is None else part.seen
        mask = functional.pad(own.to(query.device), (part.before, 0), value=True)
        mine = query[first : first + count].transpose(0, 1)
        grouped = query.shape[1] != kv_heads
        mixed = functional.scaled_dot_product_attention(mine[None], keys[None], values[None], mask, enable_gqa=grouped)
        out[first : first + count] = mixed[0].transpose(0, 1)
        first += count
    return out


@triton.jit(do_not_specialize=["layer"])
def _attend(  # type: ignore[no-untyped-def]
    query_ptr,
    mixed_ptr,
    softmax_ptr,
    seen_ptr,
    address_ptr,
    capacity_ptr,
    first_ptr,
    count_ptr,
    before_ptr,
    causal_ptr,
    prefix_ptr,
    prefix_capacity_ptr,
    shared_ptr,
    layer,
    scale,
    rows,
    width,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    SCALES_AT: tl.constexpr,
):
    """One program per block of a sequence's rows, head of keys, and split of the keys."""
    block_rows: tl.constexpr = QUERIES // GROUP
    blocks = tl.cdiv(width, block_rows)
    sequence, start = tl.program_id(0) // blocks, tl.program_id(0) % blocks * block_rows
    kv_head, split = tl.program_id(1), tl.program_id(2)
    count, before = tl.load(count_ptr + sequence).to(tl.int32), tl.load(before_ptr + sequence).to(tl.int32)
    used = _used_splits(before + count, SPLITS)
    if (start < count) & (split < used):
        folded, dims = tl.arange(0, QUERIES), tl.arange(0, BLOCK_DIM)
        row = start + folded // GROUP  # of the sequence
        valid = (folded // GROUP < block_rows) & (row < count)
        in_dim = dims < DIM
        head = kv_head * GROUP + folded % GROUP
        place = tl.load(first_ptr + sequence) + row  # of the forward
        flat = place * (KV_HEADS * GROUP) + head
        loads = valid[:, None] & in_dim[None, :]
        query = tl.load(query_ptr + flat[:, None] * DIM + dims[None, :], mask=loads, other=0.0)

        shared = tl.load(shared_ptr + sequence).to(tl.int32)
        prefix_capacity = tl.load(prefix_capacity_ptr + sequence)
        capacity = tl.load(capacity_ptr + sequence)
        address, prefix_address = tl.load(address_ptr + sequence), tl.load(prefix_ptr + sequence)
        plane = 2 * layer * KV_HEADS + kv_head
        if SCALES_AT > 0:
            table = tl.multiple_of(address.to(tl.pointer_type(tl.float8e4nv)), 16)
            prefix = tl.multiple_of(prefix_address.to(tl.pointer_type(tl.float8e4nv)), 16)
            behind = shared * (DIM // 4)
            scales = (
                scales_of(address, plane, capacity, SCALES_AT, DIM) - behind,
                scales_of(address, plane + KV_HEADS, capacity, SCALES_AT, DIM) - behind,
            )
            prefix_scales = (
                scales_of(prefix_address, plane, prefix_capacity, SCALES_AT, DIM),
                scales_of(prefix_address, plane + KV_HEADS, prefix_capacity, SCALES_AT, DIM),
            )
        else:
            table = tl.multiple_of(address.to(query_ptr.dtype), 16)
            prefix = tl.multiple_of(prefix_address.to(query_ptr.dtype), 16)
            scales = ()  # type: ignore[assignment]
            prefix_scales = ()  # type: ignore[assignment]
        prefix += plane * prefix_capacity * DIM
        table += (plane * capacity - shared) * DIM  # the key `shared` is its first
        prefix_rows = (prefix, prefix + KV_HEADS * prefix_capacity * DIM)
        rows_behind = (table, table + KV_HEADS * capacity * DIM)

        end = before + tl.minimum(count, start + block_rows)  # no row sees those after it
        share = tl.cdiv(tl.cdiv(end, used), KEYS) * KEYS
        low = split * share
        high = tl.minimum(low + share, end)
        best = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mixed = tl.zeros([QUERIES, BLOCK_DIM], tl.float32)
        stop = tl.minimum(high, shared)
        for at in range(low, stop, KEYS):
            key = at + tl.arange(0, KEYS)
            visible = valid[:, None] & (key < stop)[None, :]
            best, total, mixed = _tile(
                query, prefix_rows, prefix_scales, key, key < stop, visible, best, total, mixed, scale, DIM, BLOCK_DIM
            )
        stop = tl.minimum(high, before)
        for at in range(tl.maximum(low, shared), stop, KEYS):
            key = at + tl.arange(0, KEYS)
            visible = valid[:, None] & (key < stop)[None, :]  # a tile may reach into the next split
            best, total, mixed = _tile(
                query, rows_behind, scales, key, key < stop, visible, best, total, mixed, scale, DIM, BLOCK_DIM
            )
        causal = tl.load(causal_ptr + sequence) != 0
        for at in range(tl.maximum(low, before), high, KEYS):
            key = at + tl.arange(0, KEYS)
            own = key - before
            inside = valid[:, None] & (key < high)[None, :]  # a tile may reach into the next split
            seen = tl.load(seen_ptr + place[:, None] * width + own[None, :], mask=inside & (not causal), other=0) != 0
            visible = inside & (seen | (causal & (own[None, :] <= row[:, None])))
            best, total, mixed = _tile(
                query, rows_behind, scales, key, key < high, visible, best, total, mixed, scale, DIM, BLOCK_DIM
            )

        flat += split * rows * KV_HEADS * GROUP
        if SPLITS == 1:
            mixed = mixed / tl.where(valid, total, 1.0)[:, None]
        else:
            tl.store(softmax_ptr + 2 * flat, best, mask=valid)
            tl.store(softmax_ptr + 2 * flat + 1, total, mask=valid)
        tl.store(mixed_ptr + flat[:, None] * DIM + dims[None, :], mixed.to(mixed_ptr.dtype.element_ty), mask=loads)


@triton.jit
def _tile(  # type: ignore[no-untyped-def]
    query,
    stored,
    scales,
    key,
    exists,
    visible,
    best,
    total,
    mixed,
    scale,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One step of the online softmax (Milakov and Gimelshein 2018), in base 2. stored: where keys and
    values begin. scales: theirs, in FP8.
    """
    dims = tl.arange(0, BLOCK_DIM)
    loads = exists[:, None] & (dims < DIM)[None, :]
    keys = tl.load(stored[0] + key[:, None] * DIM + dims[None, :], mask=loads, other=0.0).to(query.dtype)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if len(scales) > 0:
        scores *= tl.load(scales[0] + key * (DIM // 4), mask=exists, other=0.0)[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    anchor = tl.where(new_best == float("-inf"), 0.0, new_best)  # the row has seen no key yet
    weight = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(best - anchor)
    values = tl.load(stored[1] + key[:, None] * DIM + dims[None, :], mask=loads, other=0.0).to(query.dtype)
    total = total * shrink + tl.sum(weight, 1)
    if len(scales) > 0:
        weight *= tl.load(scales[1] + key * (DIM // 4), mask=exists, other=0.0)[None, :]
    mixed = mixed * shrink[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
    return new_best, total, mixed


@triton.jit
def _used_splits(keys, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Among how many programs a sequence's keys, those of its rows included, are divided."""
    return tl.minimum(SPLITS, tl.cdiv(keys, _LEAST_KEYS))


@triton.jit
def _combine(  # type: ignore[no-untyped-def]
    mixed_ptr,
    softmax_ptr,
    out_ptr,
    owner_ptr,
    count_ptr,
    before_ptr,
    flats,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One program per head of a row: sums the splits that were used, weighted by their softmaxes."""
    owner = tl.load(owner_ptr + tl.program_id(0))
    if owner >= 0:
        flat = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        dims, split = tl.arange(0, BLOCK_DIM), tl.arange(0, SPLITS)
        keys = tl.load(before_ptr + owner).to(tl.int32) + tl.load(count_ptr + owner).to(tl.int32)
        used = split < _used_splits(keys, SPLITS)
        at = split * flats + flat
        best = tl.load(softmax_ptr + 2 * at, mask=used, other=float("-inf"))
        weight = tl.exp2(best - tl.max(best, 0))
        total = tl.sum(weight * tl.load(softmax_ptr + 2 * at + 1, mask=used, other=0.0), 0)
        loads = used[:, None] & (dims < DIM)[None, :]
        parts = tl.load(mixed_ptr + at[:, None] * DIM + dims[None, :], mask=loads, other=0.0)
        mixed = tl.sum(weight[:, None] * parts, 0)
        tl.store(out_ptr + flat * DIM + dims, (mixed / total).to(out_ptr.dtype.element_ty), mask=dims < DIM)
