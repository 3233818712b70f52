"""The operations of a forward that can be done in several ways, each behind one function: kernels slot in here.

What is chosen where, and why, was measured; see the functions. Plain torch, no compiler needed, nothing slow to import.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import Rope

# Weights in 2 MB pages: a one-token forward of a 135M model reads them all, and page misses are 20 % of it. torch reads
# the variable at its first allocation, so this must come early; afterwards it has no effect.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

Projection = Callable[[Tensor], Tensor]
_PACKED_FOR_ROWS = 16  # oneDNN asks for a typical batch; measured alike for 1, 16 and 32


def projection(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """x [rows, in] -> x weight^T + bias [rows, out], a new tensor.

    On a CPU the weight is packed once by oneDNN, which makes 1 to 16 rows 1.5 to 2 times as fast as `linear`: that packs
    at every call.
    """
    if not _packs(weight):
        return lambda x: functional.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed, bias, "none", [], "")


def _packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computes_bf16() -> bool:
    """Whether the processor multiplies in bf16 natively."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """Attention of query [rows, heads, dim] to keys and values [1, kv_heads, tokens, dim] -> [rows, heads * dim].

    bias: see `attention_bias`; None where every row sees every key. causal: the keys are the rows' own, no bias.
    Heads that share keys are folded into the rows, so that the keys are read once and nothing is repeated.
    """
    rows, heads, dim = query.shape
    group = heads // keys.shape[1]
    if causal:
        out = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None], keys, values, is_causal=True, enable_gqa=group > 1
        )
        return out[0].transpose(0, 1).reshape(rows, -1)
    folded = query.view(rows, -1, group, dim).transpose(0, 1).reshape(1, -1, rows * group, dim)
    out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=bias)
    return out.view(-1, rows, group, dim).transpose(0, 1).reshape(rows, -1)


def attend_behind(prefix: Tensor, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """`attend` where other keys and values, prefix [2, 1, kv_heads, tokens, dim], come first, which every row sees.

    They are read where they lie.
    """
    rows, heads, dim = query.shape
    group, tokens = heads // keys.shape[1], prefix.shape[3]
    folded = query.view(rows, -1, group, dim).transpose(0, 1).reshape(-1, rows * group, dim)
    own = folded @ keys[0].mT
    scores = torch.cat([folded @ prefix[0, 0].mT, own if bias is None else own + bias], -1)
    weights = (scores.float() * dim**-0.5).softmax(-1).to(query.dtype)
    out: Tensor = weights[..., :tokens] @ prefix[1, 0] + weights[..., tokens:] @ values[0]
    return out.view(-1, rows, group, dim).transpose(0, 1).reshape(rows, -1)


def attention_bias(seen: Tensor, before: int, group: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows * group, before + rows] for `attend`: 0 for the `before` keys and where `seen` [rows, rows]."""
    bias = torch.zeros(len(seen), before + len(seen), dtype=dtype, device=seen.device)
    bias[:, before:].masked_fill_(~seen, float("-inf"))
    return bias.repeat_interleave(group, 0)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary positions, in place. heads: [rows, heads, dim]; cos, sin: [rows, 1, 2, dim / 2] from a `RopeTable`."""
    halves = heads.view(*heads.shape[:2], 2, -1)
    swapped = halves.flip(2)
    halves.mul_(cos).addcmul_(swapped, sin)


class RopeTable:
    """Cosines and signed sines of positions, computed when first needed; the numbers are those of transformers."""

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies = torch.from_numpy(rope.frequencies(head_dim)).to(device)
        self._dtype = dtype
        self._table = self._computed(512)

    def at(self, positions: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """cos and sin [rows, 1, 2, dim / 2] for positions [rows] below `end`."""
        if end > self._table.shape[1]:
            self._table = self._computed(2 * end)
        cos, sin = self._table[:, positions].unbind(0)
        return cos, sin

    def _computed(self, count: int) -> Tensor:
        angles = torch.arange(count, device=self._frequencies.device).float()[:, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        both = torch.stack([torch.stack([cos, cos], 1), torch.stack([-sin, sin], 1)])
        return both[:, :, None].to(self._dtype)


def adapted(x: Tensor, down: Tensor, up: Tensor, eps: float) -> Tensor:
    """Rows x [rows, hidden] of mask tokens as a layer gets them; down, up [rank, hidden] (see `MaskAdapter`)."""
    normed = functional.rms_norm(x, x.shape[1:], None, eps)
    return torch.addmm(x, functional.silu(functional.linear(normed, down)), up)
