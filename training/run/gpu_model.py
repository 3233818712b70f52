"""The forward in training on a GPU: packs of many thousand rows, whose trees are masks of FlexAttention.

Low-rank factors are merged into their weights once a forward, which costs less than two more products for each of so many
rows; rows are padded to a few sizes, so that little is compiled. The same numbers as `TrainModel`'s up to rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from decoding.checkpoints.model_config import ModelConfig
from training.packs.packing import Pack
from training.run.forward import Layer, Mix, Rows, TrainModel

LEAST_HEAD = 16  # numbers of a head that FlexAttention takes on a GPU
BLOCK = 128  # rows and keys of a block of attention
PADDED = 8192  # rows are padded to a multiple of this

Weights = dict[str, Tensor]  # of one layer, by their names within it


@dataclass(frozen=True, slots=True)
class TreeRows(Rows):
    """Rows of a forest of token trees, padded."""

    seen: BlockMask


def gpu_model_fits(config: ModelConfig, device: torch.device, dropout: bool) -> bool:
    """Whether a `GpuModel` can train a model of this kind there."""
    return device.type == "cuda" and config.head_dim >= LEAST_HEAD and not dropout


class GpuModel(TrainModel):
    """`TrainModel` for packs that are forests of token trees; all others take its way."""

    def rows(self, pack: Pack) -> Rows:
        if type(pack) is not Pack:  # others have rows that see more or less than their ancestors
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

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, mix: Mix, dropout: float = 0.0) -> Tensor:
        if len(x) % PADDED or dropout:  # of another number of rows each time, which would be compiled each time
            return super()._layer(index, x, cos, sin, mix, dropout)
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
