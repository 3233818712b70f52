"""The forward of the Llama, Qwen2 and Qwen3 families, over rows of several sequences at once.

The linear layers see all rows together; attention goes sequence by sequence, each over its own keys and values. No
bookkeeping: which rows belong to whom, and what is kept, is `fast_target`'s business. Nothing here imports transformers,
which alone takes seconds; `hf_target` is the reference that this must equal.

Statistics of norms and softmaxes are in fp32 whatever the type of the weights; logits leave as fp32.

On a processor the matrix products are three quarters of a step. Tried and left out: adding the residual within the product and
attention by two products (no faster), the norm by hand (below 1 % of a step).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets.fast_ops import Projection, RopeTable, attend, attention_bias, projection, rotate
from decoding.targets.int8.linear import Int8Layers
from decoding.targets.int8.quantize import HEAD, Rounded, rounded_model
from decoding.targets.int8.rotation import rotated, stream_rotation
from decoding.targets.kv_cache import Rows

Packer = Callable[..., Projection]  # of weight and bias


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one sequence in a forward. The lists have one tensor per layer, all views of the sequence's buffer."""

    rows: slice  # of the forward
    slots: Sequence[Tensor]  # [rows, 2, kv_heads, head_dim]: where its keys and values go
    keys: Sequence[Tensor]  # [1, kv_heads, before + rows, head_dim]
    values: Sequence[Tensor]
    bias: Tensor | None  # see `attend`
    causal: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, fused and packed."""

    attention_norm: Tensor  # [hidden]
    qkv: Projection
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    attention_out: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


class FastModel:
    """Weights and forward. `weights` are (name, tensor) pairs with transformers' names, e.g. of `weight_files.read_weights`.

    dtype torch.int8: the matrices in int8, all else in fp32; on a processor only. `weights` may be those of
    `quantize.rounded_model`, or are made into them.
    Raises UnsupportedModel where the weights do not match the configuration.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.device, self.weight_dtype = config, torch.device(device), dtype
        self.dtype = torch.float32 if dtype == torch.int8 else dtype
        small = dtype == torch.int8
        plain: Packer = Int8Layers().projection if small else projection
        rotating: Packer = partial(plain, rotates=True) if small else plain
        self._rotation = stream_rotation(config.hidden_size) if small else None
        stored = _Weights(_rounded(config, dict(weights)) if small else dict(weights), self.dtype, self.device)
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embedding = stored.take("model.embed_tokens.weight", vocab, hidden)
        self.lm_head = self.embedding if config.tie_embeddings else stored.take(HEAD, vocab, hidden)
        head = stored.matrix([HEAD], [vocab], hidden) if small else self.lm_head
        self._pack_head = partial(rotating, head)
        self._final_norm = stored.take("model.norm.weight", hidden)
        self._layers = [_layer(config, stored, i, plain, rotating) for i in range(config.layers)]
        self._rope = RopeTable(config.rope, config.head_dim, self.dtype, self.device)

    @cached_property
    def _head(self) -> Projection:
        """The LM head, packed when it is first asked for: a drafter that has rows of its own never does."""
        return self._pack_head()

    def new_table(self) -> Rows:
        """An empty table for the keys and values of one sequence: a plane for each layer, of the two, and head.

        So the rows that attention reads together lie together: 1.5 ms of 20 against rows that hold all heads.
        """
        return Rows(self.config.layers * 2 * self.config.kv_heads, (self.config.head_dim,), self.dtype, self.device)

    def new_states(self, taps: int) -> Rows:
        """An empty table for the hidden states of one sequence: a plane per tap."""
        return Rows(taps, (self.config.hidden_size,), self.dtype, self.device)

    def span(self, rows: slice, table: Rows, before: int, seen: Tensor | None) -> Span:
        """Rows of a sequence of which `before` rows are in `table` already, which must have room for the new ones.

        seen [rows, rows]: which of the new rows each of them sees; None for all up to itself.
        """
        count = rows.stop - rows.start
        planes = table.data.view(self.config.layers, 2, 1, self.config.kv_heads, -1, self.config.head_dim)
        slots = planes[:, :, 0, :, before : before + count].permute(0, 3, 1, 2, 4)
        keys, values = planes[..., : before + count, :].unbind(1)
        causal = seen is None and before == 0 and count > 1
        bias = None
        if count > 1 and not causal:
            seen = torch.ones(count, count, dtype=torch.bool).tril() if seen is None else seen
            group = self.config.heads // self.config.kv_heads
            bias = attention_bias(seen.to(self.device), before, group, self.dtype)
        return Span(rows, slots.unbind(0), keys.unbind(0), values.unbind(0), bias, causal)

    def forward(
        self, tokens: Tensor, positions: Tensor, end: int, spans: Sequence[Span], taps: Sequence[int], heads: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [heads, vocab] of the rows `heads`, and hidden states [taps, rows, hidden] (None without taps).

        tokens, positions: [rows], positions below `end`. Writes the keys and values of the rows into the spans' slots.
        """
        cos, sin = self._rope.at(positions, end)
        x = functional.embedding(tokens, self.embedding)
        states, x = {0: x}, self._rotated(x)
        for index, layer in enumerate(self._layers):
            x = self._attention(layer, index, x, cos, sin, spans)
            x = self._mlp(layer, x)
            if index + 1 in taps:
                states[index + 1] = self._rotated_back(x)
        if len(self._layers) in taps:
            x = states[len(self._layers)] = self._norm(self._rotated_back(x), self._final_norm)
            x = x[heads]
        else:
            x = self._norm(self._rotated_back(x[heads]), self._final_norm)
        hidden = torch.stack([states[tap] for tap in taps]) if taps else None
        logits = self._head(x).float() if len(heads) else x.new_empty(0, self.config.vocab_size)
        return logits, hidden

    def _attention(
        self, layer: Layer, index: int, x: Tensor, cos: Tensor, sin: Tensor, spans: Sequence[Span]
    ) -> Tensor:
        heads, rotated = self.config.heads, self.config.heads + self.config.kv_heads
        qkv = layer.qkv(self._norm(x, layer.attention_norm)).view(len(x), -1, self.config.head_dim)
        if layer.qk_norm is not None:
            normed = functional.rms_norm(qkv[:, :rotated], qkv.shape[2:], None, self.config.rms_norm_eps)
            torch.mul(normed, layer.qk_norm, out=qkv[:, :rotated])
        rotate(qkv[:, :rotated], cos, sin)
        query, new = qkv[:, :heads], qkv[:, heads:].view(len(x), 2, -1, self.config.head_dim)
        out = []
        for span in spans:
            span.slots[index].copy_(new[span.rows])
            out.append(attend(query[span.rows], span.keys[index], span.values[index], span.bias, span.causal))
        return layer.attention_out(out[0] if len(out) == 1 else torch.cat(out)).add_(x)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, 1)
        return layer.down(functional.silu(gate).mul_(up)).add_(x)

    def _rotated(self, x: Tensor) -> Tensor:
        """As the layers work on it."""
        return x if self._rotation is None else rotated(x, self._rotation)

    def _rotated_back(self, x: Tensor) -> Tensor:
        return x if self._rotation is None else rotated(x, self._rotation.t())

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


class _Weights:
    """Tensors by name, taken once each, with their shape checked."""

    def __init__(self, stored: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self._stored, self._dtype, self._device = stored, dtype, device

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self._stored.pop(name, None)
        if tensor is None:
            raise UnsupportedModel(f"the checkpoint lacks the tensor {name}; its config.json and weights do not match")
        if tuple(tensor.shape) != shape:
            raise UnsupportedModel(f"{name} has shape {list(tensor.shape)}; its config.json says {list(shape)}")
        return tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)

    def matrix(self, names: Sequence[str], sizes: Sequence[int], columns: int) -> Tensor | Rounded:
        """Weights below one another, as they are stored."""
        if f"{names[0]}.steps" not in self._stored:
            return self.joined(names, sizes, columns)
        steps, scale = ([f"{name}.{part}" for name in names] for part in Rounded._fields)
        return Rounded(self.joined(steps, sizes, columns), self.joined(scale, sizes))

    def joined(self, names: Iterable[str], sizes: Sequence[int], *rest: int) -> Tensor:
        """Several tensors below one another."""
        return torch.cat([self.take(name, size, *rest) for name, size in zip(names, sizes, strict=True)])


def _rounded(config: ModelConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """With matrices of 8 bits, unless they are that already."""
    return weights if f"{HEAD}.steps" in weights else rounded_model(config, weights.items())


def _layer(config: ModelConfig, stored: _Weights, index: int, plain: Packer, rotating: Packer) -> Layer:
    prefix, hidden, inner = f"model.layers.{index}.", config.hidden_size, config.intermediate_size

    def linear(
        names: Sequence[str], sizes: Sequence[int], columns: int, biased: bool, pack: Packer = plain
    ) -> Projection:
        weight = stored.matrix([f"{prefix}{name}.weight" for name in names], sizes, columns)
        bias = stored.joined((f"{prefix}{name}.bias" for name in names), sizes) if biased else None
        return pack(weight, bias)

    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    return Layer(
        attention_norm=stored.take(f"{prefix}input_layernorm.weight", hidden),
        qkv=linear(qkv, (query, key, key), hidden, config.qkv_bias),
        qk_norm=_qk_norm(config, stored, prefix) if config.qk_norm else None,
        attention_out=linear(["self_attn.o_proj"], (hidden,), query, config.output_bias),
        mlp_norm=stored.take(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=linear(["mlp.gate_proj", "mlp.up_proj"], (inner, inner), hidden, config.mlp_bias),
        down=linear(["mlp.down_proj"], (hidden,), inner, config.mlp_bias, rotating),
    )


def _qk_norm(config: ModelConfig, stored: _Weights, prefix: str) -> Tensor:
    """Weights of both norms, spread over the heads that they belong to."""
    query, key = (stored.take(f"{prefix}self_attn.{name}_norm.weight", config.head_dim) for name in "qk")
    return torch.cat([query.expand(config.heads, -1), key.expand(config.kv_heads, -1)])
