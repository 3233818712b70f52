"""A decoder layer as heads use it: Llama's, but the caller keeps the keys and values, and inputs may have any width.

The rows belong to one sequence or one forest. A boolean mask says which rows see which, so the same forward serves a prompt,
the nodes of a draft tree, and all anchors of a training text. Rows may also come in batches ("..." below), such as the blocks
of several anchors, which share the known keys and values and do not see each other. Weights have transformers' names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoding.checkpoints.model_config import Rope
from kernels.gpu.ragged import Ragged, sent

KeysValues = tuple[Tensor, Tensor]  # [kv_heads, rows, head_dim] each, keys rotated

# The embedded model's own layer.
LAYER_SIZES: Mapping[str, Any] = {
    "heads": 9,
    "kv_heads": 3,
    "head_dim": 64,
    "intermediate": 1536,
    "rope_theta": 1e5,
    "rope_scaling": None,  # see `Rope.sizes`
    "eps": 1e-5,
}


class Rotary:
    """Cosines and sines of positions, computed once for all layers of a pass, whose positions are one tensor."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self._rope, self._head_dim = rope, head_dim
        self._last: tuple[Tensor, torch.dtype, tuple[Tensor, Tensor]] | None = None

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[..., 1, rows, head_dim] each, for positions [..., rows], which must not be written to afterwards."""
        last = self._last
        if last is not None and last[0] is positions and last[1] == dtype:
            return last[2]
        angles = positions[..., None, :, None].float() * _frequencies(self._rope, self._head_dim, positions.device)
        angles = torch.cat([angles, angles], -1)
        found = angles.cos().to(dtype), angles.sin().to(dtype)
        self._last = positions, dtype, found
        return found


@lru_cache(maxsize=64)
def _frequencies(rope: Rope, head_dim: int, device: torch.device) -> Tensor:
    """Radians per position [head_dim / 2], sent to a device once."""
    return sent(rope.frequencies(head_dim), device)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a layer. `inputs`: width of what queries, keys and values are projected from."""

    width: int
    inputs: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rotary: Rotary
    eps: float
    bias: bool = False  # of queries, keys and values
    output_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def of(cls, width: int, inputs: int, sizes: Mapping[str, Any], **other: bool) -> "LayerShape":
        """From a head's sizes."""
        named = {name: sizes[name] for name in ("heads", "kv_heads", "head_dim", "intermediate", "eps")}
        return cls(width, inputs, rotary=Rotary(Rope.of(sizes), sizes["head_dim"]), **named, **other)


class RmsNorm(nn.RMSNorm):
    """RMSNorm in the type of its input, so that half precision stays half."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


@dataclass(frozen=True, slots=True)
class TextRows:
    """What the rows of several texts see, which stand one text after the other: those of their own text.

    sizes: rows of each text. known, visible: each text's, as in `Attention.forward` for one.
    """

    sizes: Sequence[int]
    known: Sequence[Sequence[KeysValues]]
    visible: Sequence[Tensor | None]

    def attend(self, queries: Tensor, own: KeysValues) -> Tensor:
        """Attention of all rows, [heads, rows, dim] like the queries."""
        sizes = list(self.sizes)
        pairs = zip(*(torch.split(part, sizes, -2) for part in own), strict=True)
        texts = zip(torch.split(queries, sizes, -2), self.known, pairs, self.visible, strict=True)
        return torch.cat([attend_all(*text) for text in texts], -2)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self._shape = shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.inputs, queries, bias=shape.bias)
        self.k_proj = nn.Linear(shape.inputs, keys, bias=shape.bias)
        self.v_proj = nn.Linear(shape.inputs, keys, bias=shape.bias)
        self.o_proj = nn.Linear(queries, shape.width, bias=shape.output_bias)
        if shape.qk_norm:
            self.q_norm = RmsNorm(shape.head_dim, shape.eps)
            self.k_norm = RmsNorm(shape.head_dim, shape.eps)

    def keys_values(self, x: Tensor, positions: Tensor) -> KeysValues:
        """The keys and values of x [..., rows, inputs] at positions [..., rows]."""
        keys, values = self._split(self.k_proj(x)), self._split(self.v_proj(x))
        keys = self.k_norm(keys) if self._shape.qk_norm else keys
        return self._rotated(keys, positions), values

    def forward(
        self, x: Tensor, positions: Tensor, known: Sequence[KeysValues] | TextRows, visible: Tensor | None
    ) -> tuple[Tensor, KeysValues]:
        """(mixed [..., rows, width], the rows' own keys and values).

        x [..., rows, inputs]; positions [..., rows]. known: keys and values [kv_heads, rows, head_dim] that precede the rows'
        own, in order; or what rows [rows, inputs] of several texts see. visible [..., rows, known + rows]: what each row sees;
        None: everything.
        """
        own = self.keys_values(x, positions)
        queries = self._split(self.q_proj(x))
        queries = self._rotated(self.q_norm(queries) if self._shape.qk_norm else queries, positions)
        if isinstance(known, TextRows):
            out = known.attend(queries, own)
        else:
            attend = attend_shared if known and x.dim() > 2 else attend_all
            out = attend(queries, known, own, visible)
        mixed: Tensor = self.o_proj(out.transpose(-3, -2).flatten(-2))
        return mixed, own

    def in_tables(self, x: Tensor, rows: Ragged, layer: int, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Mixed [rows, width] by our kernels: keys and values of x [rows, inputs] go into the texts' tables and are read where
        they lie. turn: cosines and signed sines [positions, head_dim].
        """
        from kernels.gpu.tree_attention import rotate_and_store, tree_attention  # needs Triton

        shape, norm = self._shape, None
        if shape.qk_norm:
            each = (self.q_norm.weight, shape.heads), (self.k_norm.weight, shape.kv_heads)
            norm = torch.cat([weight.expand(count, -1) for weight, count in each])
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1).view(len(x), -1, shape.head_dim)
        query = rotate_and_store(qkv, norm, *turn, rows, layer, shape.kv_heads, shape.eps)
        mixed: Tensor = self.o_proj(tree_attention(query, rows, layer, shape.kv_heads).flatten(1))
        return mixed

    def _split(self, x: Tensor) -> Tensor:
        """[..., rows, n * head_dim] -> [..., n, rows, head_dim]."""
        dim = self._shape.head_dim
        return x.reshape(*x.shape[:-1], x.shape[-1] // dim, dim).transpose(-3, -2)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self._shape.rotary.at(positions, x.dtype)
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin


def attend_all(queries: Tensor, known: Sequence[KeysValues], own: KeysValues, visible: Tensor | None) -> Tensor:
    """Attention of rows to `known` and to themselves, with any batch dimensions: [..., heads, rows, dim] like the queries."""
    keys, values = (_four(torch.cat(part, -2)) for part in zip(*known, own, strict=True))
    mask = None if visible is None else _four(visible.unsqueeze(-3))
    grouped = queries.shape[-3] != keys.shape[-3]
    return functional.scaled_dot_product_attention(_four(queries), keys, values, mask, enable_gqa=grouped).view_as(
        queries
    )


def _four(x: Tensor) -> Tensor:
    """All batch dimensions merged into one, as fused attention needs it."""
    return x.reshape(-1, *x.shape[-3:])


def attend_shared(queries: Tensor, known: Sequence[KeysValues], own: KeysValues, visible: Tensor | None) -> Tensor:
    """Attention of batches that share `known`, whose keys and values are read in place, not copied for every batch.

    queries [batch, heads, rows, dim]; known: keys and values [kv_heads, tokens, dim]; own: those of the rows [batch, kv_heads,
    rows, dim]; visible [batch, rows, tokens + rows]; None: everything. Returns [batch, heads, rows, dim].
    """
    batch, heads, _, dim = queries.shape
    shared_keys, shared_values = (torch.cat(part, -2) for part in zip(*known, strict=True))
    keys, values = (part.transpose(0, 1) for part in own)
    kv_heads, tokens, _ = shared_keys.shape
    grouped = queries.reshape(batch, kv_heads, -1, dim).transpose(0, 1) * dim**-0.5  # heads of one key head, row by row
    before = (grouped.flatten(1, 2) @ shared_keys.mT).view(kv_heads, batch, -1, tokens)
    scores = torch.cat([before, grouped @ keys.mT], -1)
    if visible is not None:
        scores = scores.masked_fill(~visible.repeat(1, heads // kv_heads, 1), float("-inf"))
    weights = scores.softmax(-1)
    mixed = (weights[..., :tokens].flatten(1, 2) @ shared_values).view_as(grouped)
    out: Tensor = (mixed + weights[..., tokens:] @ values).transpose(0, 1).reshape(queries.shape)
    return out


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Attention and MLP with their norms. first_norm: whether the input is normed before attention."""

    def __init__(self, shape: LayerShape, first_norm: bool = True) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.inputs, shape.eps) if first_norm else None
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.eps)
        self.mlp = GatedMlp(shape.width, shape.intermediate)

    def forward(
        self, x: Tensor, positions: Tensor, known: Sequence[KeysValues] | TextRows, visible: Tensor | None
    ) -> tuple[Tensor, KeysValues]:
        """Like `Attention.forward`, but returns the layer's output [rows, width] instead of attention's."""
        mixed, own = self.self_attn(self.normed(x), positions, known, visible)
        return self.after_attention(x + mixed), own

    def normed(self, x: Tensor) -> Tensor:
        """What attention reads of x [..., inputs]."""
        return x if self.input_layernorm is None else self.input_layernorm(x)

    def after_attention(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
