"""Triton kernels of norms and of the gate between two products.

- A layer's output is added to the residual stream, and the RMS norm of the sum is computed, in one pass over the row.
- Before a layer, the rows of mask tokens are changed by the mask adapter (`decoding.checkpoints.mask_adapter`) and get the
  layer's first norm, in one launch; other rows pass unchanged. It is launched only if a draft has masks.
- silu(gate) * up, from the two halves of one product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.gpu.ragged import on_triton, padded


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + delta, its RMS norm times weight), for x and delta [rows, hidden], contiguous; statistics in fp32."""
    if not on_triton(x):
        return add_rms_norm_reference(x, delta, weight, eps)
    rows, hidden = x.shape
    added, normed = torch.empty_like(x), torch.empty_like(x)
    warps = 8 if hidden > 2048 else 4
    _add_rms_norm[(rows,)](x, delta, weight, added, normed, eps, SIZE=hidden, BLOCK=padded(hidden), num_warps=warps)
    return added, normed


def add_rms_norm_reference(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The same with two operators of torch."""
    added = x + delta
    return added, functional.rms_norm(added, weight.shape, weight, eps)


@triton.jit
def _add_rms_norm(  # type: ignore[no-untyped-def]
    x_ptr, delta_ptr, weight_ptr, added_ptr, normed_ptr, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """One program per row."""
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + column
    added = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) + tl.load(delta_ptr + at, mask=inside, other=0.0)
    added = added.to(added_ptr.dtype.element_ty)
    tl.store(added_ptr + at, added, mask=inside)
    added = added.to(tl.float32)  # the rounded sum
    normed = (
        added * tl.rsqrt(tl.sum(added * added, 0) / SIZE + eps) * tl.load(weight_ptr + column, mask=inside, other=0.0)
    )
    tl.store(normed_ptr + at, normed.to(normed_ptr.dtype.element_ty), mask=inside)


_TILE = 16384  # numbers of a factor that a program holds at once


def adapt_and_norm(
    x: Tensor, normed: Tensor, masked: Tensor, down: Tensor, up: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x and `normed` [rows, hidden] with other rows where `masked` [rows] (bool) is true: x + up^T silu(down norm(x)), and its
    RMS norm times weight. down, up [rank, hidden]. All contiguous; sums in fp32.
    """
    if not on_triton(x):
        return adapt_and_norm_reference(x, normed, masked, down, up, weight, eps)
    (rows, hidden), rank = x.shape, len(down)
    adapted, out, block = torch.empty_like(x), torch.empty_like(x), padded(hidden)
    chunk = min(max(_TILE // block, 1), padded(rank))
    warps = 8 if hidden > 2048 else 4
    _adapt_and_norm[(rows,)](
        x, normed, masked, down, up, weight, adapted, out, rank, eps,
        SIZE=hidden, BLOCK=block, CHUNK=chunk, num_warps=warps,
    )  # fmt: skip
    return adapted, out


def adapt_and_norm_reference(
    x: Tensor, normed: Tensor, masked: Tensor, down: Tensor, up: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The same with operators of torch."""
    inner = functional.silu(functional.linear(functional.rms_norm(x, x.shape[1:], None, eps), down))
    adapted = torch.where(masked[:, None], x + inner @ up, x)
    return adapted, torch.where(masked[:, None], functional.rms_norm(adapted, weight.shape, weight, eps), normed)


@triton.jit
def _adapt_and_norm(  # type: ignore[no-untyped-def]
    x_ptr, normed_ptr, masked_ptr, down_ptr, up_ptr, weight_ptr, adapted_ptr, out_ptr, rank, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    row = tl.program_id(0).to(tl.int64)
    at = row * SIZE + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    normed = tl.load(normed_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if tl.load(masked_ptr + row) != 0:
        scaled = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
        for first in range(0, rank, CHUNK):
            component = first + tl.arange(0, CHUNK)
            where = component[:, None] * SIZE + column[None, :]
            known = (component < rank)[:, None] & inside[None, :]
            inner = tl.sum(tl.load(down_ptr + where, mask=known, other=0.0).to(tl.float32) * scaled[None, :], 1)
            inner = inner * tl.sigmoid(inner)
            x += tl.sum(tl.load(up_ptr + where, mask=known, other=0.0).to(tl.float32) * inner[:, None], 0)
        x = x.to(adapted_ptr.dtype.element_ty).to(tl.float32)  # as it is stored
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        normed = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps) * weight
    tl.store(adapted_ptr + at, x.to(adapted_ptr.dtype.element_ty), mask=inside)
    tl.store(out_ptr + at, normed.to(out_ptr.dtype.element_ty), mask=inside)


_COLUMNS = 1024


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [rows, inner] of gate_up [rows, 2 * inner], contiguous: the gates first."""
    if not on_triton(gate_up):
        return gated_reference(gate_up)
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, inner)
    _gated[(rows, triton.cdiv(inner, _COLUMNS))](gate_up, out, inner, COLUMNS=_COLUMNS)
    return out


def gated_reference(gate_up: Tensor) -> Tensor:
    """The same with two operators of torch."""
    gate, up = gate_up.chunk(2, 1)
    return functional.silu(gate) * up


@triton.jit
def _gated(gate_up_ptr, out_ptr, inner, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per block of columns of a row."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < inner
    at = row * 2 * inner + column
    gate = tl.load(gate_up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + at + inner, mask=inside, other=0.0)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * inner + column, out.to(out_ptr.dtype.element_ty), mask=inside)
