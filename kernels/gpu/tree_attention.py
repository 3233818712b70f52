"""Attention of draft trees on a GPU, and what precedes it: norms and rotation of queries and keys, stored in their tables.

It is an online softmax over contiguous keys and values, and before them those of a prefix that sequences share. They are split
among programs if there are few rows (Flash-Decoding, Dao et al. 2023), and heads that share keys are folded into the rows.
Earlier tokens need no mask: only the rows' own N x N part has one. How many programs share a sequence's keys depends on how
many keys it has, also within a captured graph, whose grid has room for the most. Parts stay in fp32, because they are rounded
once more when they are summed.

A table in FP8 (e4m3) is one of bytes [planes, capacity, dim], with the scales in planes behind those of the rows, at the place
of their rows: code that moves, copies or grows rows takes them along. `scales_at` is the first of these planes; 0 means numbers
of the model's type. A scale is a power of two, as in the MX formats of the Open Compute Project, and belongs to one row.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.gpu.ragged import Ragged, on_triton, padded

_LARGEST = 448.0  # in e4m3
LEAST_SCALE = 1e-30  # of a row of zeros
PER_LARGEST = 1 / _LARGEST
EXPONENT = 0x7F800000  # of a number in fp32
UP = 0x7FFFFF  # added before the mantissa is cut off, this leads to the next power of two


def scale_planes(planes: int, dim: int) -> int:
    """How many planes hold the scales, which are in fp32, of so many planes of rows."""
    return -(-planes * 4 // dim)


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., dim] in FP8, and their scales [..., 1] in fp32: the least with which FP8 can hold the row's largest number."""
    wide = rows.float()
    least = (wide.abs().amax(-1, keepdim=True) * PER_LARGEST).clamp_min(LEAST_SCALE)
    scale = ((least.view(torch.int32) + UP) & EXPONENT).view(torch.float32)
    return (wide / scale).to(torch.float8_e4m3fn), scale


def write_rows(table: Tensor, planes: range, slots: slice, rows: Tensor, scales_at: int) -> None:
    """Put rows [planes, slots, dim] into their place of a table."""
    place = slice(planes.start, planes.stop)
    if not scales_at:
        table[place, slots] = rows
        return
    small, scale = rounded(rows)
    table[place, slots] = small.view(torch.uint8)
    plane, at = _places(table, planes)
    table[scales_at:].view(torch.float32)[plane, slots, at] = scale[..., 0]


def read_rows(table: Tensor, planes: range, count: int, scales_at: int, dtype: torch.dtype) -> Tensor:
    """The first `count` rows of some planes [planes, count, dim], in this type."""
    rows = table[planes.start : planes.stop, :count]
    if not scales_at:
        return rows
    plane, at = _places(table, planes)
    scale = table[scales_at:].view(torch.float32)[plane, :count, at]
    return (rows.view(torch.float8_e4m3fn).float() * scale[..., None]).to(dtype)


def _places(table: Tensor, planes: range) -> tuple[Tensor, Tensor]:
    """The planes of scales, and the places in their rows, for these planes of rows."""
    number = torch.arange(planes.start, planes.stop, device=table.device)
    in_a_row = table.shape[2] // 4
    return number // in_a_row, number % in_a_row


_PER_LARGEST, _LEAST_SCALE = tl.constexpr(PER_LARGEST), tl.constexpr(LEAST_SCALE)
_EXPONENT, _UP = tl.constexpr(EXPONENT), tl.constexpr(UP)


def rotate_and_store(
    qkv: Tensor, norm: Tensor | None, cos: Tensor, sin: Tensor, ragged: Ragged, layer: int, kv_heads: int, eps: float
) -> Tensor:
    """Queries [rows, heads, dim], normed and rotated; the keys, treated in the same way, and the values go into the tables.

    qkv [rows, heads + 2 * kv_heads, dim], contiguous: queries, keys, values. norm [heads + kv_heads, dim]: weights of an RMS
    norm over dim before the rotation, or None. cos, sin [positions, dim], contiguous; sin is negative in the first half: the
    output is x * cos + (halves of x swapped) * sin.
    """
    if not on_triton(qkv):
        return rotate_and_store_reference(qkv, norm, cos, sin, ragged, layer, kv_heads, eps)
    rows, planes, dim = qkv.shape
    heads = planes - 2 * kv_heads
    query = qkv.new_empty(rows, heads, dim)
    _rotate_and_store[(rows, planes)](
        qkv,
        qkv if norm is None else norm,
        cos,
        sin,
        query,
        ragged.address,
        ragged.capacity,
        ragged.position,
        ragged.owner,
        ragged.slot,
        layer,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_DIM=padded(dim),
        NORMED=norm is not None,
        SCALES_AT=ragged.scales_at,
        num_warps=1,
    )
    return query


def rotate_and_store_reference(
    qkv: Tensor, norm: Tensor | None, cos: Tensor, sin: Tensor, ragged: Ragged, layer: int, kv_heads: int, eps: float
) -> Tensor:
    """The same, operator by operator and table by table."""
    heads, dim = qkv.shape[1] - 2 * kv_heads, qkv.shape[2]
    rotated, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
    if norm is not None:
        rotated = functional.rms_norm(rotated, (dim,), None, eps) * norm
    cos, sin = cos[ragged.position, None], sin[ragged.position, None]
    rotated = rotated * cos + rotated.roll(dim // 2, -1) * sin
    new = torch.cat([rotated[:, heads:], values], 1).transpose(0, 1)
    planes, first = range(2 * layer * kv_heads, 2 * (layer + 1) * kv_heads), 0
    for part in ragged.parts:
        mine = slice(first, first + len(part.tokens))
        write_rows(part.table, planes, part.slots, new[:, mine], ragged.scales_at)
        first = mine.stop
    query: Tensor = rotated[:, :heads].contiguous()
    return query


@triton.jit(do_not_specialize=["layer"])
def _rotate_and_store(  # type: ignore[no-untyped-def]
    qkv_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    query_ptr,
    address_ptr,
    capacity_ptr,
    position_ptr,
    owner_ptr,
    slot_ptr,
    layer,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    NORMED: tl.constexpr,
    SCALES_AT: tl.constexpr,
):
    """One program per row and head of queries, keys or values."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK_DIM)
    inside = dims < DIM
    swapped = (dims + DIM // 2) % DIM
    x_ptr = qkv_ptr + (row * (HEADS + 2 * KV_HEADS) + head) * DIM
    x = tl.load(x_ptr + dims, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        other = tl.load(x_ptr + swapped, mask=inside, other=0.0).to(tl.float32)
        if NORMED:
            scale = tl.rsqrt(tl.sum(x * x, 0) / DIM + eps)
            x = x * scale * tl.load(norm_ptr + head * DIM + dims, mask=inside, other=0.0)
            other = other * scale * tl.load(norm_ptr + head * DIM + swapped, mask=inside, other=0.0)
        turn = tl.load(position_ptr + row) * DIM + dims
        x = x * tl.load(cos_ptr + turn, mask=inside, other=0.0)
        x += other * tl.load(sin_ptr + turn, mask=inside, other=0.0)
    out = x.to(query_ptr.dtype.element_ty)
    if head < HEADS:
        tl.store(query_ptr + (row * HEADS + head) * DIM + dims, out, mask=inside)
    else:
        owner = tl.load(owner_ptr + row)
        if owner >= 0:
            address, capacity = tl.load(address_ptr + owner), tl.load(capacity_ptr + owner)
            plane = 2 * layer * KV_HEADS + head - HEADS  # the planes of the values follow those of the keys
            slot = tl.load(slot_ptr + row)
            at = (plane * capacity + slot) * DIM
            if SCALES_AT > 0:
                least = tl.maximum(tl.max(tl.abs(x), 0) * _PER_LARGEST, _LEAST_SCALE)
                scale = ((least.to(tl.int32, bitcast=True) + _UP) & _EXPONENT).to(tl.float32, bitcast=True)
                tl.store(scales_of(address, plane, capacity, SCALES_AT, DIM) + slot * (DIM // 4), scale)
                small = _rounded(tl.div_rn(x, scale + tl.zeros_like(x))).to(tl.float8e4nv)
                tl.store(address.to(tl.pointer_type(tl.float8e4nv)) + at + dims, small, mask=inside)
            else:
                table = tl.multiple_of(address.to(query_ptr.dtype), 16)
                tl.store(table + at + dims, out, mask=inside)


@triton.jit
def _rounded(x):  # type: ignore[no-untyped-def]
    """The nearest numbers that e4m3 can hold, half to even: Triton's interpreter does not round so when it converts."""
    power = tl.maximum(x.to(tl.int32, bitcast=True) & _EXPONENT, 121 << 23)  # at least that of the least normal number
    far = (power + (20 << 23)).to(tl.float32, bitcast=True) * 1.5  # where fp32 has no finer steps than e4m3 has at x
    return (x + far) - far


@triton.jit
def scales_of(address, plane, capacity, SCALES_AT: tl.constexpr, DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a plane's scales begin in a table of `kernels.gpu.tree_attention`; those of two slots are DIM // 4 apart."""
    in_a_row: tl.constexpr = DIM // 4
    first = (SCALES_AT + plane // in_a_row) * capacity * in_a_row + plane % in_a_row
    return address.to(tl.pointer_type(tl.float32)) + first


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
        everything = torch.ones(count, count, dtype=torch.bool)
        own = (everything if part.mutual else everything.tril()) if part.seen is None else part.seen
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

        mutual = tl.load(causal_ptr + sequence) == 2
        end = before + tl.where(mutual, count, tl.minimum(count, start + block_rows))
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
        last = tl.where(mutual, count, row)  # of the rows that a row of a chain or block sees
        for at in range(tl.maximum(low, before), high, KEYS):
            key = at + tl.arange(0, KEYS)
            own = key - before
            inside = valid[:, None] & (key < high)[None, :]  # a tile may reach into the next split
            seen = tl.load(seen_ptr + place[:, None] * width + own[None, :], mask=inside & (not causal), other=0) != 0
            visible = inside & (seen | (causal & (own[None, :] <= last[:, None])))
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
