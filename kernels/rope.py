"""Normalises and rotates queries and keys, and stores keys and values in their tables, in one pass over a fused product."""

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.launch import on_triton, padded
from kernels.ragged import Ragged


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
    first = 0
    for part in ragged.parts:
        mine, slots = slice(first, first + len(part.tokens)), part.slots
        planes = part.table.view(-1, 2, kv_heads, *part.table.shape[1:])
        planes[layer, 0, :, slots] = rotated[mine, heads:].transpose(0, 1)
        planes[layer, 1, :, slots] = values[mine].transpose(0, 1)
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
            table = tl.multiple_of(tl.load(address_ptr + owner).to(query_ptr.dtype), 16)
            plane = 2 * layer * KV_HEADS + head - HEADS  # the planes of the values follow those of the keys
            at = plane * tl.load(capacity_ptr + owner) + tl.load(slot_ptr + row)
            tl.store(table + at * DIM + dims, out, mask=inside)
