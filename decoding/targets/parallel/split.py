"""Which part of a model each of several processes holds, as in Megatron-LM (Shoeybi et al., arXiv 1909.08053).

Queries, keys, values, gates and ups are cut by rows, so each process has some heads and some of the inner numbers. The output
projection of attention and the down projection are cut by columns, and what they give is added up over the processes: two sums
a layer. The LM head, which every forward reads whole, is cut by tokens; the embedding, of which a forward reads a few rows, is
in every process. Where there are more processes than key-value heads, some hold the same ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.targets.int8.rounding import HEAD

_CUT_BY_ROWS = {"q_proj": "queries", "k_proj": "keys", "v_proj": "keys", "gate_proj": "inner", "up_proj": "inner"}
_CUT_BY_COLUMNS = {"o_proj": "queries", "down_proj": "inner"}


class Stored(Protocol):
    """A tensor, or one in a file of which only what is asked for is read."""

    def __getitem__(self, key: Any, /) -> Tensor: ...


@dataclass(frozen=True)
class Split:
    """Process `rank` of `size`, and the configuration of the whole model. Raises UnsupportedModel where it cannot be cut so."""

    config: ModelConfig
    rank: int
    size: int

    def __post_init__(self) -> None:
        config, size = self.config, self.size
        for count, what in ((config.heads, "attention heads"), (config.intermediate_size, "inner numbers of the MLP")):
            if count % size:
                raise UnsupportedModel(f"{count} {what} cannot be cut into {size} equal parts; start another number")
        if config.kv_heads % size and size % config.kv_heads:
            raise UnsupportedModel(
                f"{config.kv_heads} key-value heads cannot be shared out to {size} processes; start another number"
            )

    @cached_property
    def part(self) -> ModelConfig:
        """The configuration of this process's part; its vocabulary is the whole one."""
        config, size = self.config, self.size
        return replace(
            config,
            heads=config.heads // size,
            kv_heads=max(1, config.kv_heads // size),
            intermediate_size=config.intermediate_size // size,
        )

    @property
    def head_size(self) -> int:
        """Tokens of the LM head in a part; the last part may hold fewer."""
        return -(-self.config.vocab_size // self.size)

    @property
    def head_rows(self) -> slice:
        """The tokens whose logits this process computes."""
        start, vocab = self.rank * self.head_size, self.config.vocab_size
        return slice(min(start, vocab), min(start + self.head_size, vocab))

    def memory_bytes(self, matrix_bytes: int, other_bytes: int) -> int:
        """Memory of this process's weights, see `ModelConfig.memory_bytes`."""
        elsewhere = 0 if self.config.tie_embeddings else self.config.vocab_size - self.head_size
        return self.part.memory_bytes(matrix_bytes, other_bytes) - elsewhere * self.config.hidden_size * matrix_bytes

    def cut(self, name: str, stored: Stored) -> Tensor:
        """This process's part of the tensor of this name, in memory of its own."""
        part = self._part(name, stored)
        return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part

    def all_cut(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The parts of whole tensors, of which one at a time is needed."""
        for name, tensor in weights:
            yield name, self.cut(name, tensor)

    def _part(self, name: str, stored: Stored) -> Tensor:
        *_, module, kind = name.split(".")
        if name == HEAD:
            return stored[self.head_rows]
        if module in _CUT_BY_ROWS:
            return stored[self._place(_CUT_BY_ROWS[module])]
        if module in _CUT_BY_COLUMNS and kind == "weight":
            return stored[:, self._place(_CUT_BY_COLUMNS[module])]
        whole = stored[:]
        is_counted_elsewhere = module in _CUT_BY_COLUMNS and self.rank > 0  # a bias, which the sum must hold once
        return torch.zeros_like(whole) if is_counted_elsewhere else whole

    def _place(self, what: str) -> slice:
        config, part = self.config, self.part
        first, count = {
            "queries": (self.rank * part.heads * config.head_dim, part.heads * config.head_dim),
            "keys": (self.rank * config.kv_heads // self.size * config.head_dim, part.kv_heads * config.head_dim),
            "inner": (self.rank * part.intermediate_size, part.intermediate_size),
        }[what]
        return slice(first, first + count)
