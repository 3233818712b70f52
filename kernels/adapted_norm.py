"""What mask tokens' rows get before a layer, and the layer's first norm of them, in one launch; other rows pass unchanged.

`decoding.checkpoints.adapters.mask_adapter` says what it is for. Where no draft has masks, it is not launched.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.launch import on_triton, padded

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
