"""Adds a layer's output to the residual stream and computes the RMS norm of the sum, in one pass over the row."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.launch import on_triton, padded


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
