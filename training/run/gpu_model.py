"""The forward in training on a GPU: packs of many thousand rows, whose trees are masks of FlexAttention.

Low-rank factors are merged into their weights once a forward, which costs less than two more products for each of so many
rows; rows are padded to a few sizes, so that little is compiled. The same numbers as `TrainModel`'s up to rounding.

The differentiable forward of the Llama, Qwen2 and Qwen3 families over one pack, full or low-rank.

Tensors have transformers' names. There is no cache and no batch dimension: all rows of a pack go through the linear layers
together, and attention is computed in blocks of rows, each over the keys that it needs. Trained tensors are fp32 master
weights, cast in the forward, so that gradients are in fp32 (they may be kept elsewhere, sharded); frozen tensors
have the compute type. `fast_model` is the forward for decoding; a test checks that both agree with transformers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from decoding.checkpoints.adapter import Adapter, Factors
from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets.llama_model import RopeTable
from training.packs.packing import Pack
from training.run.cpu_ops import Block, attend_in_blocks, low_rank_linear

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
    """Like `llama_model.rotate`, but not in place."""
    halves = heads.view(*heads.shape[:2], 2, -1)
    return (halves * cos + halves.flip(2) * sin).view(heads.shape)


# Rows of an attention block. On one core of a CPU with AVX-512 bf16, with 768 rows of which 160 are the prefix of pairs of 80:
# 214 tokens/s with blocks of 64 or 128 rows, 186 if blocks of 128 keep all keys before them, 169 in one block.
BLOCK_ROWS = {"cpu": 128}
_BLOCK_ROWS_ELSEWHERE = 1024


Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values [rows, heads, dim] -> what attention makes of them [rows, heads * dim]."""

Known = list[tuple[Tensor, Tensor]]
"""Keys and values [rows, kv_heads, dim] of some rows, by layer."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A pack on the device, ready for the forward."""

    tokens: Tensor  # [rows]
    positions: Tensor  # [rows]
    deepest: int
    blocks: Sequence[Block]
    sources: Tensor  # [targets] rows whose logits are wanted


class TrainModel:
    """Weights and forward.

    `weights` are (name, tensor) pairs with transformers' names. With `factors`, exactly those are trained and everything else
    is frozen, and `scale` is the factor of B A; without, all matrices are trained. Raises UnsupportedModel if the weights lack
    a tensor.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor]],
        factors: Mapping[str, Factors] | None,
        scale: float,
        dtype: torch.dtype,
        device: torch.device,
        trained_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.dtype, self.device, self._trained_dtype = config, dtype, device, trained_dtype
        self.trained: dict[str, Tensor] = {}  # by name, leaves: W itself, or `<module>.lora_A` and `.lora_B`
        self._frozen: dict[str, Tensor] = {}
        for name, tensor in weights:
            if factors is None and tensor.dim() > 1:
                self._train(name, tensor)
            else:
                self._frozen[name] = tensor.to(device, dtype)
        for module, pair in (factors or {}).items():
            self._train(f"{module}.lora_A", pair.a)
            self._train(f"{module}.lora_B", pair.b)
        self._scale = scale
        self._rope = RopeTable(config.rope, config.head_dim, dtype, device)

    def _train(self, name: str, tensor: Tensor) -> None:
        self.trained[name] = tensor.detach().to(self.device, self._trained_dtype, copy=True).requires_grad_()

    def rows(self, pack: Pack) -> Rows:
        """The pack as tensors on the device."""
        positions = pack.positions()
        return Rows(
            tokens=self._ids(pack.tokens),
            positions=self._ids(positions),
            deepest=int(positions.max()),
            blocks=list(self._blocks(torch.from_numpy(pack.mask()))),
            sources=self._ids(pack.sources),
        )

    def logits(self, rows: Rows) -> Tensor:
        """Logits [targets, vocab] in fp32, at `rows.sources` only, because the LM head is a fifth of the embedded model."""
        return functional.linear(self.outputs(rows), self._weight(self._head_name)).float()

    def outputs(self, rows: Rows) -> Tensor:
        """What the LM head reads [targets, hidden] at `rows.sources`."""
        for x in self._layers(rows):  # noqa: B007  (the last is wanted)
            pass
        return self._norm(functional.embedding(rows.sources, x), "model.norm.weight")  # see `_taken`

    @property
    def frozen_head(self) -> Tensor | None:
        """The LM head [vocab, hidden], unless it is trained."""
        return self._frozen.get(self._head_name)

    @property
    def _head_name(self) -> str:
        return "model.embed_tokens.weight" if self.config.tie_embeddings else "lm_head.weight"

    def _head(self, x: Tensor, ids: Tensor) -> Tensor:
        """Logits in fp32 of the last layer's output [rows, hidden], of the tokens `ids` alone."""
        return functional.linear(self._norm(x, "model.norm.weight"), self._weight(self._head_name)[ids]).float()

    @torch.no_grad()
    def states(self, rows: Rows, taps: Sequence[int]) -> Tensor:
        """Hidden states [rows, taps, hidden] of every row; `decoding.engine.target.Target` defines taps."""
        found = dict(enumerate(self._layers(rows)))
        found[self.config.layers] = self._norm(found[self.config.layers], "model.norm.weight")
        return torch.stack([found[tap] for tap in taps], 1)

    def _layers(self, rows: Rows, known: Known | None = None) -> Iterator[Tensor]:
        """The embeddings [rows, hidden], then every layer's output. known: gets the keys and values of each layer."""
        cos, sin = self._rope.at(rows.positions, rows.deepest + 1)
        x = functional.embedding(rows.tokens, self._weight("model.embed_tokens.weight"))
        yield x
        mix = self._mix(rows)
        mix = mix if known is None else partial(_kept, known, mix)
        for index in range(self.config.layers):
            x = self._layer(index, x, cos, sin, mix)
            yield x

    def _mix(self, rows: Rows) -> Mix:
        """The attention among the rows of a pack."""
        return partial(attended, blocks=rows.blocks)

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, mix: Mix) -> Tensor:
        prefix = f"model.layers.{index}."
        layer = Layer(
            lambda name, rows: self._linear(prefix + name, rows),
            lambda name, rows: self._norm(rows, prefix + name),
            self.config,
        )
        return layer.mixed_in(x, mix(*layer.heads(x, cos, sin)))

    def _linear(self, module: str, x: Tensor) -> Tensor:
        weight, bias = self._weight(f"{module}.weight"), self._frozen.get(f"{module}.bias")
        if f"{module}.lora_A" not in self.trained:
            return functional.linear(x, weight, bias)
        if self.device.type == "cpu":
            a, b = self.trained[f"{module}.lora_A"], self.trained[f"{module}.lora_B"]
            return low_rank_linear(x, weight, bias, a, b, self._scale)
        y = functional.linear(x, weight, bias)
        inner = functional.linear(x, self._weight(f"{module}.lora_A"))
        return torch.addmm(y, inner, self._weight(f"{module}.lora_B").T, alpha=self._scale)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._weight(name)
        return functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _weight(self, name: str) -> Tensor:
        if (master := self.trained.get(name)) is not None:
            return master.to(self.dtype)
        if (weight := self._frozen.get(name)) is not None:
            return weight
        raise UnsupportedModel(f"the checkpoint lacks the tensor {name}; its config.json and weights do not match")

    def _blocks(self, seen: Tensor) -> Iterator[Block]:
        """The blocks of a pack whose rows see each other as in `seen` [rows, rows]."""
        size = BLOCK_ROWS.get(self.device.type, _BLOCK_ROWS_ELSEWHERE)
        for start in range(0, len(seen), size):
            block = seen[start : start + size]
            needed = block.any(0).nonzero()[:, 0]
            first, stop = int(needed[0]), int(needed[-1]) + 1
            run = len(needed) == stop - first
            keys = slice(first, stop) if run else needed.to(self.device)
            bias = torch.zeros(len(block), len(needed), dtype=self.dtype)
            bias.masked_fill_(~block[:, needed], float("-inf"))
            yield Block(slice(start, start + len(block)), keys, bias.to(self.device))

    def _ids(self, values: Any) -> Tensor:
        return torch.from_numpy(values).long().to(self.device)


def _kept(known: Known, mix: Mix, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    known.append((key, value))
    return mix(query, key, value)


def attended(query: Tensor, key: Tensor, value: Tensor, blocks: Iterable[Block]) -> Tensor:
    """Attention of query [rows, heads, dim] to key and value [rows, kv_heads, dim], block by block -> [rows, heads * dim]."""
    if query.device.type == "cpu":
        return attend_in_blocks(query, key, value, blocks)
    return torch.cat([attend(query[b.rows], _taken(key, b.keys), _taken(value, b.keys), b.bias) for b in blocks])


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention of query [rows, heads, dim] to key and value [keys, kv_heads, dim] -> [rows, heads * dim], by torch's kernels.

    bias: [rows, keys].
    """
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    return out[0].transpose(0, 1).flatten(1)


def _taken(heads: Tensor, keys: slice | Tensor) -> Tensor:
    """Some rows of [rows, heads, dim]. The backward of `embedding` sums in a fixed order; that of indexing may not."""
    if isinstance(keys, slice):
        return heads[keys]
    return functional.embedding(keys, heads.flatten(1)).view(-1, *heads.shape[1:])


def new_factors(shapes: Mapping[str, Sequence[int]], rank: int, seed: int) -> dict[str, Factors]:
    """Initial factors as in peft: A is uniform within 1 / sqrt(in), B is zero. `shapes`: [out, in] by module."""
    chance = torch.Generator().manual_seed(seed)
    factors = {}
    for module in sorted(shapes):
        out, columns = shapes[module]
        a = torch.empty(rank, columns).uniform_(-(columns**-0.5), columns**-0.5, generator=chance)
        factors[module] = Factors(a, torch.zeros(out, rank))
    return factors


def adapter_of(model: TrainModel, like: Adapter) -> Adapter:
    """The model's trained factors, with everything else as in `like`."""
    trained = {name: tensor.detach().cpu() for name, tensor in model.trained.items()}
    factors = {m: Factors(trained[f"{m}.lora_A"], trained[f"{m}.lora_B"]) for m in like.factors}
    return replace(like, factors=factors)


LEAST_HEAD = 16  # numbers of a head that FlexAttention takes on a GPU
BLOCK = 128  # rows and keys of a block of attention
PADDED = 8192  # rows are padded to a multiple of this

Weights = dict[str, Tensor]  # of one layer, by their names within it


@dataclass(frozen=True, slots=True)
class TreeRows(Rows):
    """Rows of a forest of token trees, padded."""

    seen: BlockMask


def gpu_model_fits(config: ModelConfig, device: torch.device) -> bool:
    """Whether a `GpuModel` can train a model of this kind there."""
    return device.type == "cuda" and config.head_dim >= LEAST_HEAD


class GpuModel(TrainModel):
    """`TrainModel` for packs that are forests of token trees; all others take its way."""

    def rows(self, pack: Pack) -> Rows:
        if type(pack).mask is not Pack.mask:  # rows that see more or less than their ancestors
            return super().rows(pack)
        positions, spare = pack.positions(), -pack.rows % PADDED
        ends = np.concatenate([pack.ends(), np.arange(pack.rows + 1, pack.rows + spare + 1, dtype=np.int32)])
        return TreeRows(
            tokens=functional.pad(self._ids(pack.tokens), (0, spare)),
            positions=functional.pad(self._ids(positions), (0, spare)),
            deepest=int(positions.max()),
            blocks=(),
            sources=self._ids(pack.sources),
            seen=block_mask(ends, self.device),
        )

    def _mix(self, rows: Rows) -> Mix:
        return partial(mixed_by_trees, self._compiled, rows.seen) if isinstance(rows, TreeRows) else super()._mix(rows)

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, mix: Mix) -> Tensor:
        if len(x) % PADDED:  # of another number of rows each time, which would be compiled each time
            return super()._layer(index, x, cos, sin, mix)
        heads, mixed_in, _ = compiled_functions(self._compiled)
        weights = self._merged_layer(index)
        made: Tensor = mixed_in(x, mix(*heads(x, cos, sin, weights, self.config)), weights, self.config)
        return made

    @property
    def _compiled(self) -> bool:
        return self.device.type == "cuda"

    def _merged_layer(self, index: int) -> Weights:
        """The weights of a layer, with the factors merged."""
        prefix = f"model.layers.{index}."
        names = [name for name in (*self._frozen, *self.trained) if name.startswith(prefix) and ".lora_" not in name]
        return {name.removeprefix(prefix): self._merged(name) for name in names}

    def _merged(self, name: str) -> Tensor:
        module = name.removesuffix(".weight")
        if f"{module}.lora_A" not in self.trained:
            return self._weight(name)
        a, b = self._weight(f"{module}.lora_A"), self._weight(f"{module}.lora_B")
        return torch.addmm(self._frozen[name], b, a, alpha=self._scale)


def block_mask(ends: np.ndarray, device: torch.device) -> BlockMask:
    """The mask of a forest by `Pack.ends` [rows]; rows are a multiple of BLOCK."""
    count = len(ends) // BLOCK
    by_block = ends.reshape(count, BLOCK)
    first, before = np.arange(count) * BLOCK, np.tri(count, k=-1, dtype=bool)
    some = (by_block.max(1) > first[:, None]) & np.tri(count, dtype=bool)
    whole = (by_block.min(1) >= first[:, None] + BLOCK) & before
    last = torch.from_numpy(ends).to(device)

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (key <= row) & (row < last[key])

    partly, wholly = blocks_listed(some & ~whole, device), blocks_listed(whole, device)
    return BlockMask.from_kv_blocks(*partly, *wholly, BLOCK_SIZE=BLOCK, mask_mod=seen)


def blocks_listed(needed: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of rows needs [1, 1, blocks], and which, these first [1, 1, blocks, blocks]."""
    order = np.argsort(~needed, axis=1, kind="stable").astype(np.int32)
    counts = needed.sum(1).astype(np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(order)[None, None].to(device)


def mixed_by_trees(compiled: bool, seen: BlockMask, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of query [rows, heads, dim] to key and value [keys, kv_heads, dim] -> [rows, heads * dim]."""
    *_, attention = compiled_functions(compiled)
    folded = (each.transpose(0, 1)[None] for each in (query, key, value))
    mixed: Tensor = attention(*folded, block_mask=seen, enable_gqa=True)
    return mixed[0].transpose(0, 1).flatten(1)


@cache
def compiled_functions(compiled: bool) -> tuple[Callable[..., Any], ...]:
    """`heads`, `mixed_in` and attention, compiled where that pays."""
    plain = (_heads, _mixed_in, flex_attention)
    return tuple(torch.compile(each, dynamic=False) for each in plain) if compiled else plain


def _heads(x: Tensor, cos: Tensor, sin: Tensor, weights: Weights, config: ModelConfig) -> tuple[Tensor, Tensor, Tensor]:
    return _layer(weights, config).heads(x, cos, sin)


def _mixed_in(x: Tensor, mixed: Tensor, weights: Weights, config: ModelConfig) -> Tensor:
    return _layer(weights, config).mixed_in(x, mixed)


def _layer(weights: Weights, config: ModelConfig) -> Layer:
    def linear(name: str, rows: Tensor) -> Tensor:
        return functional.linear(rows, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name: str, rows: Tensor) -> Tensor:
        weight = weights[name]
        return functional.rms_norm(rows, weight.shape, weight, config.rms_norm_eps)

    return Layer(linear, norm, config)
