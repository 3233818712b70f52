"""The head of Domino (arXiv 2605.29707): a block head, and a causal correction of its guesses by the tokens guessed before.

A GRU reads the anchor and the guessed tokens; its state and a position's state give a low-rank correction of that position's
logits. For a small target, the paper's second factor [vocab, rank] would be larger than the rest of the head, so by default it
is the LM head times a [hidden, rank] matrix. Weights have the names of the published heads.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from decoding.heads.head import HeadConfig
from decoding.heads.modules.block import BlockHead


class DominoHead(BlockHead):
    """gru: width of the causal encoder. rank: of the correction. own_output: whether it has its own factor [vocab, rank]."""

    sizes: ClassVar[Mapping[str, Any]] = {**BlockHead.sizes, "shift": True, "gru": 256, "rank": 64, "own_output": False}

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        gru, rank = self.size("gru"), self.size("rank")
        outputs = config.vocab if self.size("own_output") else config.hidden
        self.prefix_gru = nn.GRU(config.hidden, gru, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(config.hidden + gru, rank, bias=False), nn.SiLU(), nn.Linear(rank, outputs, bias=False)
        )

    def start(self, count: int) -> Tensor:
        """The encoder's state [count, gru] before any token."""
        return self.fc.weight.new_zeros(count, self.size("gru"))

    def read(self, state: Tensor, embedded: Tensor) -> Tensor:
        """The state [paths, gru] after one more token each, embedded [paths, hidden]."""
        inputs, recurrent = self.prefix_gru.all_weights[0]
        return torch.gru_cell(embedded, state, inputs, recurrent)

    def read_all(self, embedded: Tensor) -> Tensor:
        """States [paths, tokens, gru] after every token of embedded [paths, tokens, hidden]."""
        states: Tensor = self.prefix_gru(embedded)[0]
        return states

    def factor(self, states: Tensor, prefix: Tensor) -> Tensor:
        """The correction's left factor [..., rank] for positions with states [..., hidden] after prefixes [..., gru]."""
        out: Tensor = self.embed_proj[:2](torch.cat([states, prefix], -1))
        return out

    def factor_rows(self, lm_head_rows: Tensor, ids: Tensor) -> Tensor:
        """The right factor [tokens, rank] for some tokens: the correction of their logits is factor @ factor_rows.T."""
        weight = cast(nn.Linear, self.embed_proj[2]).weight
        return weight[ids] if self.size("own_output") else lm_head_rows @ weight
