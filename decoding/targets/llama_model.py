"""What every forward of the Llama, Qwen2 and Qwen3 families starts from: operators, weights, and tables for what it writes.

What is chosen where was measured; see the functions. `fast_target` has the forward on a processor, `cuda` the one on a GPU.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.mask_adapter import Ahead, MaskAdapter
from decoding.checkpoints.model_config import HEAD, ModelConfig, Rope
from decoding.errors import UnsupportedModel
from decoding.targets.prefix_cache import PrefixedTable, TokenTable
from kernels.gpu.low_bit import LowBit, joined, low_bit_reference
from kernels.gpu.ragged import SequenceRows, sent

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


class TensorTable(TokenTable[Tensor]):
    """A table in a tensor of this type on this device."""

    def __init__(self, planes: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(planes, shape, partial(torch.empty, dtype=dtype, device=device))


WORTH_SHARING = 64  # rows


class SharedTable(PrefixedTable[Tensor]):
    """is_kept: whether these are the rows of a closed sequence."""

    own: TensorTable

    def __init__(self, own: TensorTable, prefix: Tensor | None = None, is_kept: bool = False) -> None:
        super().__init__(own, prefix)
        self.is_kept = is_kept
        self.is_lent = False  # whether others read rows of `own`, which must not serve another sequence then

    def begin(self, count: int, own: TensorTable) -> "SharedTable":
        """A table on `own`, which is empty, that begins with the first `count` rows.

        Those of an open sequence are shared. Those of a closed one are copied unless they were shared before, because the next
        sequence is likely to be alone, and attention over rows in two places takes more operators; for the same reason a few
        rows are copied, and what follows a prefix.
        """
        if self.prefix is None and not self.is_kept and count >= WORTH_SHARING:
            self.is_lent = True
            return SharedTable(own, self.own.data[:, :count])
        prefix = self.prefix[:, :count] if self.prefix is not None and count >= WORTH_SHARING else None
        if prefix is None or count > self.shared:
            own.copy_from(self._last_rows(count))
        return SharedTable(own, prefix)

    def _last_rows(self, count: int) -> Tensor:
        """Of the first `count` rows those after the prefix; all of them where they are so few that none lie after it."""
        if self.prefix is not None and count <= self.shared:
            return self.prefix[:, :count]
        return self.own.data[:, : count - self.shared]

    def kept(self, count: int) -> "SharedTable":
        """The first `count` rows, to stay when the sequence is closed: a copy of those that are its own."""
        prefix = None if self.prefix is None else self.prefix[:, :count]
        return SharedTable(self.own.first_rows(max(count - self.shared, 0)), prefix, is_kept=True)


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


class Forwarded(NamedTuple):
    """What a forward gives. Hidden states last until the next one.

    streams: [heads, hidden] of the rows that have logits, before the final norm; None without heads for tokens ahead.
    """

    logits: Tensor  # [heads, vocab], fp32, of the rows that were asked for
    hidden: Tensor | None  # [taps, rows or more, hidden]; None without taps
    streams: Tensor | None


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
        ahead = masks.ahead if masks else None
        self.ahead_heads = AheadHeads(ahead, config.rms_norm_eps, self.dtype, self.device) if ahead else None

    @cached_property
    def head(self) -> Projection:
        """The LM head, packed when it is first asked for: a drafter that has rows of its own never does."""
        return self._pack_head()

    def prepare(self, taps: tuple[int, ...] = ()) -> None:
        """Do what takes long the first time that hidden states of these layers are wanted; nothing on a processor."""
        return

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
    def forward(self, rows: Sequence[SequenceRows], taps: Sequence[int], heads: Sequence[int]) -> Forwarded:
        """heads: the rows whose logits are asked for. Rows lie sequence after sequence. Keys and values go into the sequences'
        tables.
        """

    def logits_ahead(self, streams: Tensor, heads: Sequence[tuple[bool, int]]) -> Tensor:
        """Logits [rows, vocab] of tokens ahead, from `Forwarded.streams` of as many rows. heads: see `Ahead.heads`."""
        assert self.ahead_heads is not None
        return self.head(self.ahead_heads.normed(streams, heads) * self.final_norm)


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


class AheadHeads:
    """The heads of a mask adapter for tokens after a row's own, in front of the LM head (see `Ahead`)."""

    def __init__(self, ahead: Ahead, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self._heads, self._eps = ahead.heads, eps
        self._down, self._up = (
            torch.from_numpy(each).to(device, dtype).flatten(0, 1) for each in (ahead.down, ahead.up)
        )

    def normed(self, streams: Tensor, heads: Sequence[tuple[bool, int]]) -> Tensor:
        """The final norm without its weight of streams [rows, hidden], for tokens ahead. heads: see `Ahead.heads`."""
        which = self._heads(heads)
        normed = functional.rms_norm(streams, streams.shape[1:], None, self._eps)
        for head in {*which} - {-1}:
            rows = sent([row for row, each in enumerate(which) if each == head], streams.device)
            said = adapted(normed[rows], self._down[head], self._up[head], self._eps)
            normed = normed.index_copy(0, rows, functional.rms_norm(said, said.shape[1:], None, self._eps))
        return normed


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
