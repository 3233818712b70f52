"""Coupled sequential glancing distillation (Falcon, arXiv 2412.12639, 3.3).

A first pass without gradient guesses the k positions after every anchor. Of these, glancing * (1 - progress) times as many as
it got wrong are drawn and shown to a second pass: the input pair (token and feature) of such a position is replaced by the true
one, and the loss is on the others. So the head first learns the dependencies inside a glance, and later to do without them.
The loss is SmoothL1 of the features + 0.1 * (0.9 * KL + 0.1 * CE) of the tokens, as in the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.modules.falcon import FalconHead, pairs_of, windows_of
from decoding.heads.modules.layer import KeysValues
from decoding.training.head_kinds.sizes import attention_sizes
from decoding.training.heads.objective import HeadBatch
from decoding.training.heads.vocabulary import (
    batch_vocabulary,
    cross_entropy,
    frequent_tokens,
    places,
    soft_cross_entropy,
)


@dataclass(frozen=True, slots=True)
class FalconObjective:
    """k: tokens of a glance. glancing: share of the mistakes shown at first, 0.4 in the paper; 0 turns it off. noise: bound of
    the uniform noise on the features in training. lstm: width; 0: four ninths of the target's. memory, layers: see
    `FalconHead`.
    """

    k: int = 2
    glancing: float = 0.4
    noise: float = 0.1
    lstm: int = 0
    memory: int = 4
    layers: int = 1
    frequent: int = 512

    def new(self, target: ModelConfig, counts: Tensor) -> Head:
        sizes: dict[str, Any] = attention_sizes(target) | {
            "k": self.k,
            "lstm": self.lstm or target.hidden_size * 4 // 9,
            "memory": self.memory,
            "layers": self.layers,
            "intermediate": target.hidden_size * 16 // 9,
        }
        frequent = frequent_tokens(counts, self.frequent)
        return new_head(HeadConfig("falcon", target.hidden_size, target.vocab_size, (target.layers,), sizes, frequent))

    def loss(self, head: FalconHead, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        ids = batch_vocabulary(head.config, batch)
        lesson = _Lesson(head, batch, self.noise if head.training else 0.0)
        labels, inside = places(ids, batch.targets[lesson.index])
        counted = lesson.valid & inside
        shown = torch.zeros_like(counted)
        if head.training and self.glancing:
            with torch.no_grad():
                wrong = (lesson.guessed(shown) @ batch.lm_head[ids].T).argmax(-1) != labels
            shown = _drawn(wrong & counted, counted, self.glancing * (1 - batch.progress))
        features = lesson.guessed(shown)
        learnt = counted & ~shown
        teacher = batch.logits(batch.sources, ids)[lesson.index]
        logits = features @ batch.lm_head[ids].T
        wanted = batch.final[batch.sources][lesson.index]
        feature = functional.smooth_l1_loss(features, wanted, reduction="none").mean(-1)
        each = feature + 0.1 * (0.9 * soft_cross_entropy(logits, teacher) + 0.1 * cross_entropy(logits, labels))
        right = ((logits.argmax(-1) == labels) & learnt).sum(0) / learnt.sum(0).clamp_min(1)
        figures = {f"right_{i + 1}": value for i, value in enumerate(right.unbind())}
        return (each * learnt).sum() / learnt.sum().clamp_min(1), figures


def _drawn(wrong: Tensor, counted: Tensor, part: float) -> Tensor:
    """In each row, `part` times as many positions as are wrong, drawn at random from those that count."""
    many = part * wrong.sum(1)
    whole = many.floor() + (torch.rand_like(many) < many.frac())
    order = torch.rand(counted.shape, device=counted.device).masked_fill(~counted, 2.0).argsort(1).argsort(1)
    return (order < whole[:, None]) & counted


class _Lesson:
    """The anchors of a batch: their pairs, what they see, and the targets of their glances."""

    def __init__(self, head: FalconHead, batch: HeadBatch, noise: float) -> None:
        self._head, self._batch = head, batch
        self.index, valid = batch.ahead(head.k)
        features = batch.final
        if noise:
            features = features + noise * (2 * torch.rand_like(features) - 1)
        embedded = functional.embedding(batch.tokens, batch.embedding)
        pairs = pairs_of(embedded, features[batch.parents.clamp_min(0)])
        self._pairs = torch.cat([pairs * (batch.parents >= 0)[:, None], pairs.new_zeros(1, pairs.shape[1])])
        after = pairs_of(functional.embedding(batch.targets, batch.embedding), features[batch.sources])
        self._own = after[self.index]  # [anchors, k, 2 * hidden]: the true pairs of the positions
        self._line = ancestors(batch.parents, head.memory + head.k - 1)  # [rows, ...], the row itself last
        rows = self._line[batch.sources][:, -head.k :]
        self.valid = valid & (batch.parents[rows.clamp_max(len(batch.parents) - 1)] >= 0).all(1, keepdim=True)
        self.valid &= (rows < len(batch.parents)).all(1, keepdim=True)
        self._positions = (
            batch.positions[batch.sources, None] + torch.arange(1 - head.k, 1, device=rows.device)
        ).flatten()
        self._seen = self._mask(rows)
        self._known = self._context()

    def guessed(self, shown: Tensor) -> Tensor:
        """Features [anchors, k, hidden] of the positions after the anchors; shown [anchors, k]: those in the input."""
        head = self._head
        line = self._pairs[self._line[self._batch.sources]]
        glance = torch.where(shown[..., None], self._own, line[:, -head.k :])
        line = torch.cat([line[:, : -head.k], glance], 1)
        x = head.read(windows_of(line, head.memory).flatten(0, 1))
        features, _ = head(x, self._positions, self._known, self._seen)
        states: Tensor = features.unflatten(0, (-1, head.k))
        return states

    def _mask(self, glances: Tensor) -> Tensor:
        """Mask [anchors * k, rows + anchors * k]: a glance sees the text before it, and itself."""
        count = len(glances)
        before = self._batch.sees[self._batch.sources] & (self._batch.parents >= 0)
        padded = torch.cat([before, before.new_zeros(count, 1)], 1)  # the last column means "no row"
        before = padded.scatter(1, glances, torch.zeros_like(glances, dtype=torch.bool))[:, :-1]
        own = torch.eye(count, dtype=torch.bool, device=before.device).repeat_interleave(self._head.k, 1)
        return torch.cat([before, own], 1).repeat_interleave(self._head.k, 0)

    def _context(self) -> list[list[KeysValues]]:
        """Keys and values of all rows by layer; each row sees itself and those before it."""
        windows = self._pairs[self._line[:, self._head.k - 1 :]]
        sees = torch.eye(len(windows), dtype=torch.bool, device=windows.device)
        nothing: list[list[KeysValues]] = [[] for _ in self._head.layers]
        before = self._batch.sees & (self._batch.parents >= 0)
        _, own = self._head(self._head.read(windows), self._batch.positions, nothing, before | sees)
        return [[each] for each in own]


def ancestors(parents: Tensor, count: int) -> Tensor:
    """[rows, count]: the last `count` rows of the text up to each row, itself last; the number `rows` where there are fewer."""
    none = len(parents)
    above = torch.cat([parents.where(parents >= 0, none), parents.new_tensor([none])])
    line = [torch.arange(none, device=parents.device)]
    for _ in range(count - 1):
        line.append(above[line[-1]])
    return torch.stack(line[::-1], 1)
