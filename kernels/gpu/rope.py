"""Normalises and rotates queries and keys, and stores keys and values, in 16 bits or in FP8.

Rows of keys and values in FP8 (e4m3), each with a scale of its own, so that a row's bytes depend on that row alone.

Scales are powers of two, as in the MX formats of the Open Compute Project: they cost no precision, and do not carry the last
bits of a sum into the bytes.

A table of bytes [planes, capacity, dim] holds the scales in planes behind those of the rows, at the place of their rows:
whoever moves, copies or grows the rows of a table takes the scales along. `scales_at` is the first of these planes; 0 means
that the table holds numbers of the model's type, and no scales.

Normalises and rotates queries and keys, and stores keys and values in their tables, in one pass over a fused product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.gpu.ragged import Ragged
from kernels.gpu.tables import on_triton, padded

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
    """Where a plane's scales begin in a table of `kernels.gpu.rope`; those of two slots are DIM // 4 apart."""
    in_a_row: tl.constexpr = DIM // 4
    first = (SCALES_AT + plane // in_a_row) * capacity * in_a_row + plane % in_a_row
    return address.to(tl.pointer_type(tl.float32)) + first
