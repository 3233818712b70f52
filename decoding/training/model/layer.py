"""A layer of the Llama, Qwen2 and Qwen3 families around its attention, for any way of getting at its weights."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig

Weighted = Callable[[str, Tensor], Tensor]
"""(name within the layer, rows [rows, in]) -> what the linear layer or the norm of that name makes of them."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What comes before and after attention. Names are transformers', without the layer's prefix."""

    linear: Weighted
    norm: Weighted
    config: ModelConfig

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [rows, heads, dim] of the layer's input x [rows, hidden]."""
        normed = self.norm("input_layernorm.weight", x)
        query, key, value = (
            self.linear(f"self_attn.{name}_proj", normed).view(len(x), -1, self.config.head_dim) for name in "qkv"
        )
        if self.config.qk_norm:
            query, key = self.norm("self_attn.q_norm.weight", query), self.norm("self_attn.k_norm.weight", key)
        return _rotated(query, cos, sin), _rotated(key, cos, sin), value

    def mixed_in(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output [rows, hidden] from its input and what attention made [rows, heads * dim]."""
        x = x + self.linear("self_attn.o_proj", mixed)
        normed = self.norm("post_attention_layernorm.weight", x)
        gate, up = self.linear("mlp.gate_proj", normed), self.linear("mlp.up_proj", normed)
        return x + self.linear("mlp.down_proj", functional.silu(gate) * up)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Like `fast_ops.rotate`, but not in place."""
    halves = heads.view(*heads.shape[:2], 2, -1)
    return (halves * cos + halves.flip(2) * sin).view(heads.shape)
