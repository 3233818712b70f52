"""What every forward of the Llama, Qwen2 and Qwen3 families starts from: weights, and tables for what it writes.

`fast_model` is the forward on a processor, `cuda.cuda_model` the one on a GPU.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.mask_adapter import MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets.fast_ops import Projection, RopeTable, adapted, projection
from decoding.targets.int8.rounding import HEAD
from decoding.targets.tensor_tables import TensorTable
from kernels.gpu.low_bit import LowBit, joined, low_bit_reference
from kernels.gpu.ragged import SequenceRows

Packer = Callable[..., Projection]  # of weight and bias


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


class Share(Protocol):
    """How one of several processes builds its part of a model, see `decoding.targets.parallel`."""

    @property
    def head_rows(self) -> slice:
        """The tokens whose logits it computes."""
        ...

    def summed(self, pack: Packer) -> Packer:
        """For matrices whose inputs are shared out: what they give is added up."""
        ...

    def head(self, pack: Packer, rows: Tensor) -> Projection:
        """The LM head, with the logits of all tokens, from its rows here."""
        ...


class _Alone:
    """A process that has the whole model."""

    head_rows = slice(None)

    def summed(self, pack: Packer) -> Packer:
        return pack

    def head(self, pack: Packer, rows: Tensor) -> Projection:
        return pack(rows)


class LlamaModel(ABC):
    """Weights, tables and a forward. `weights` are (name, tensor) pairs with transformers' names, as `read_weights` yields, or
    `read_low_bit`: the layers' matrices then stay packed, while an embedding or LM head is dequantised.

    masks: what mask tokens get; their ids follow those of the vocabulary, one for each depth. share: of a process among
    several, whose part `config` and `weights` describe; `lm_head` is its part, too.
    Raises UnsupportedModel where the weights do not match the configuration.
    """

    forward_rows: int | None = None  # of a prompt that go in one forward; None: as many as a processor's caches like
    chooses_together = False  # whether the choices after all rows of a forward are made at once

    def __init__(
        self,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor | LowBit]],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        masks: MaskAdapter | None = None,
        share: Share | None = None,
    ) -> None:
        share = share or _Alone()
        self.config, self.device, self.dtype = config, torch.device(device), dtype
        pack, pack_summed = self._projection, share.summed(self._projection)
        named = dict(weights)
        self.is_packed = any(isinstance(weight, LowBit) for weight in named.values())
        stored = _Weights(named, self.dtype, self.device)
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embedding = stored.take("model.embed_tokens.weight", vocab, hidden)
        rows = range(vocab)[share.head_rows]
        self.lm_head = self.embedding if config.tie_embeddings else stored.take(HEAD, len(rows), hidden)
        own_rows = self.embedding[share.head_rows] if config.tie_embeddings else self.lm_head
        self._pack_head = partial(share.head, pack, own_rows)
        self.final_norm = stored.take("model.norm.weight", hidden)
        self.layers = [_layer(config, stored, i, pack, pack_summed) for i in range(config.layers)]
        self.rope = RopeTable(config.rope, config.head_dim, self.dtype, self.device)
        self.mask_adapter = masks
        self.masks = MaskLayers(masks, config, self.dtype, self.device) if masks else None

    @cached_property
    def head(self) -> Projection:
        """The LM head, packed when it is first asked for: a drafter that has rows of its own never does."""
        return self._pack_head()

    def low_bit_product(self, x: Tensor, weight: LowBit, bias: Tensor | None) -> Tensor:
        """x [rows, in] times a packed weight's transpose, and the bias."""
        return low_bit_reference(x, weight, bias)

    def _projection(self, weight: Tensor | LowBit, bias: Tensor | None = None) -> Projection:
        if isinstance(weight, LowBit):
            return partial(self.low_bit_product, weight=weight, bias=bias)
        return projection(weight, bias)

    def new_table(self) -> TensorTable:
        """An empty table for the keys and values of one sequence: a plane for each layer, of the two, and head.

        So the rows that attention reads together lie together: 1.5 ms of 20 against rows that hold all heads.
        """
        return TensorTable(
            self.config.layers * 2 * self.config.kv_heads, (self.config.head_dim,), self.dtype, self.device
        )

    def new_states(self, taps: int) -> TensorTable:
        """An empty table for the hidden states of one sequence: a plane per tap."""
        return TensorTable(taps, (self.config.hidden_size,), self.dtype, self.device)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm of x [rows, hidden]."""
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    @abstractmethod
    def forward(
        self, rows: Sequence[SequenceRows], taps: Sequence[int], heads: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [heads, vocab], fp32, of the rows `heads`, and hidden states [taps, rows or more, hidden] (None without taps).

        Rows lie sequence after sequence. Keys and values go into the sequences' tables; hidden states last until the next
        call.
        """


class MaskLayers:
    """The adapter of a model whose rows are of type `dtype`. Raises UnsupportedModel."""

    def __init__(self, adapter: MaskAdapter, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        adapter.check_fits(config)
        self._vocab, self._eps = config.vocab_size, config.rms_norm_eps
        self._embeddings = torch.from_numpy(adapter.embeddings).to(device, dtype)
        self._down, self._up = (torch.from_numpy(each).to(device, dtype) for each in (adapter.down, adapter.up))

    def rows(self, tokens: Sequence[int]) -> Tensor:
        """Which rows are mask tokens'."""
        return torch.tensor([row for row, token in enumerate(tokens) if token >= self._vocab], device=self._down.device)

    def embed(self, tokens: Sequence[int], rows: Tensor, x: Tensor) -> None:
        """Put the embeddings of the mask tokens into `rows` of x, in place."""
        depths = [token - self._vocab for token in tokens if token >= self._vocab]
        x[rows] = self._embeddings[depths]

    def embedded(self, tokens: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [rows, hidden] with the embeddings of the mask tokens among `tokens` [rows], and which rows those are."""
        masked = tokens >= self._vocab
        depths = (tokens - self._vocab).clamp_min(0)
        return torch.where(masked[:, None], functional.embedding(depths, self._embeddings), x), masked

    def factors(self, layer: int) -> tuple[Tensor, Tensor]:
        """`down` and `up` [rank, hidden] of a layer."""
        return self._down[layer], self._up[layer]

    def adapt(self, layer: int, rows: Tensor, x: Tensor) -> Tensor:
        """x with what the rows get before a layer; x itself stays what it is."""
        return x.index_copy(0, rows, adapted(x[rows], self._down[layer], self._up[layer], self._eps))


class _Weights:
    """Tensors by name, taken once each, with their shape checked."""

    def __init__(self, stored: dict[str, Tensor | LowBit], dtype: torch.dtype, device: torch.device) -> None:
        self._stored, self._dtype, self._device = stored, dtype, device

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self._stored.pop(name, None)
        if tensor is None:
            raise UnsupportedModel(f"the checkpoint lacks the tensor {name}; its config.json and weights do not match")
        if tuple(tensor.shape) != shape:
            raise UnsupportedModel(f"{name} has shape {list(tensor.shape)}; its config.json says {list(shape)}")
        if isinstance(tensor, LowBit):
            tensor = tensor.dequantised()
        return tensor.to(self._device, self._dtype)

    def matrix(self, names: Sequence[str], sizes: Sequence[int], columns: int) -> Tensor | LowBit:
        """Weights below one another, as they are stored; those that are packed in different ways are dequantised."""
        packed = self._packed(names, [(size, columns) for size in sizes])
        return self.joined(names, sizes, columns) if packed is None else packed

    def _packed(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> LowBit | None:
        """None where they are not packed, or not alike, or not of these shapes."""
        parts = [part for name in names if isinstance(part := self._stored.get(name), LowBit)]
        if [part.shape for part in parts] != shapes or (all_rows := joined(parts)) is None:
            return None
        for name in names:
            del self._stored[name]
        return all_rows.to(self._device)

    def joined(self, names: Iterable[str], sizes: Sequence[int], *rest: int) -> Tensor:
        """Several tensors below one another."""
        return torch.cat([self.take(name, size, *rest) for name, size in zip(names, sizes, strict=True)])


def _layer(config: ModelConfig, stored: _Weights, index: int, pack: Packer, pack_summed: Packer) -> Layer:
    """pack_summed: for the two matrices whose inputs several processes share out."""
    prefix, hidden, inner = f"model.layers.{index}.", config.hidden_size, config.intermediate_size

    def linear(
        names: Sequence[str], sizes: Sequence[int], columns: int, biased: bool, pack: Packer = pack
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
        attention_out=linear(["self_attn.o_proj"], (hidden,), query, config.output_bias, pack_summed),
        mlp_norm=stored.take(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=linear(["mlp.gate_proj", "mlp.up_proj"], (inner, inner), hidden, config.mlp_bias),
        down=linear(["mlp.down_proj"], (hidden,), inner, config.mlp_bias, pack_summed),
    )


def _qk_norm(config: ModelConfig, stored: _Weights, prefix: str) -> Tensor:
    """Weights of both norms, spread over the heads that they belong to."""
    query, key = (stored.take(f"{prefix}self_attn.{name}_norm.weight", config.head_dim) for name in "qk")
    return torch.cat([query.expand(config.heads, -1), key.expand(config.kv_heads, -1)])
