"""How drafters are trained: Medusa, EAGLE-3, Falcon and a small language model.

Medusa-1: cross-entropy of every head with the token that it should guess; the target is frozen (arXiv 2401.10774, 2.2.1).

A drafter cut from the target's first layers and distilled: cross-entropy to the target's own distribution on its answers.

Forward KL on what the target wrote is what DistillSpec (arXiv 2310.08461) calls supervised distillation.

EAGLE-3's training-time test (arXiv 2503.01840, 3.2): the drafter is unrolled on its own states, as in drafting.

Step 0 reads the target's features; step k reads the output of step k - 1 at the same anchor, and sees the context and its own
earlier steps, like a chain in decoding. The loss is the sum over steps of decay^k times the soft cross-entropy to the target's
distribution over the draft vocabulary; positions whose most likely token is outside it are left out.

Coupled sequential glancing distillation (Falcon, arXiv 2412.12639, 3.3).

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
from decoding.heads.kinds import spread_taps
from decoding.heads.modules.drafters import Eagle3Head, FalconHead, MedusaHead, SmallLm, pairs_of, windows_of
from decoding.heads.modules.layer import KeysValues
from training.heads.block_kinds import attention_sizes
from training.heads.features import (
    HeadBatch,
    batch_vocabulary,
    cross_entropy,
    frequent_tokens,
    places,
    soft_cross_entropy,
)


@dataclass(frozen=True, slots=True)
class MedusaObjective:
    """decay: ratio of a head's weight to that of the head before it; 0.8 in the paper, 1 in the released trainer.

    frequent: size of the draft vocabulary, to which each prompt's own tokens are added; 0: the target's whole vocabulary.
    """

    heads: int = 4
    layers: int = 1
    decay: float = 0.8
    frequent: int = 512

    def new(self, target: ModelConfig, counts: Tensor) -> Head:
        return new_head(
            HeadConfig(
                "medusa",
                target.hidden_size,
                target.vocab_size,
                taps=(target.layers,),
                sizes={"heads": self.heads, "layers": self.layers},
                frequent=frequent_tokens(counts, self.frequent),
            )
        )

    def loss(self, head: MedusaHead, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The weighted sum over heads of their mean cross-entropies."""
        count = head.size("heads")
        ids = batch_vocabulary(head.config, batch)
        logits = head.logits(head(batch.final[batch.sources]), batch.lm_head[ids], ids)
        index, valid = batch.ahead(count + 1)
        labels, inside = places(ids, batch.targets[index[:, 1:]])
        valid = valid[:, 1:] & inside
        each = (cross_entropy(logits, labels) * valid).sum(0) / valid.sum(0).clamp_min(1)
        weights = self.decay ** torch.arange(count, device=each.device)
        right = ((logits.argmax(-1) == labels) & valid).sum(0) / valid.sum(0).clamp_min(1)
        return each @ weights, {f"right_{i + 1}": value for i, value in enumerate(right.unbind())}


@dataclass(frozen=True, slots=True)
class DraftModelObjective:
    """layers: how many of the target's first are kept. frequent: size of the draft vocabulary besides the prompt's tokens."""

    layers: int = 1
    frequent: int = 512

    def new(self, target: ModelConfig, counts: Tensor) -> Head:
        sizes: dict[str, Any] = attention_sizes(target) | {
            "layers": self.layers,
            "intermediate": target.intermediate_size,
            "bias": target.qkv_bias,
            "qk_norm": target.qk_norm,
        }
        frequent = frequent_tokens(counts, self.frequent)
        return new_head(HeadConfig("draft_model", target.hidden_size, target.vocab_size, (), sizes, frequent))

    def start(self, head: Head, weights: Mapping[str, Tensor]) -> None:
        """Initialise the head from the target's first layers and its final norm."""
        stored = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        head.load_state_dict({name: stored[name].float() for name in head.state_dict()})

    def loss(self, head: SmallLm, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        ids = batch_vocabulary(head.config, batch)
        embedded = functional.embedding(batch.tokens, batch.embedding)
        states = head(embedded, batch.positions, batch.sees)[batch.sources]
        logits, teacher = states @ batch.lm_head[ids].T, batch.logits(batch.sources, ids)
        right = (logits.argmax(-1) == teacher.argmax(-1)).float().mean()
        return soft_cross_entropy(logits, teacher).mean(), {"right_1": right}


@dataclass(frozen=True, slots=True)
class Eagle3Objective:
    """steps: of the unrolling; the paper uses 7, and decay 0.8. intermediate: width of the MLP; 0: about 1.8 times the target's
    width.
    """

    steps: int = 7
    decay: float = 0.8
    frequent: int = 512
    intermediate: int = 0

    def new(self, target: ModelConfig, counts: Tensor) -> Head:
        inner = self.intermediate or target.hidden_size * 16 // 9
        return new_head(
            HeadConfig(
                "eagle3",
                target.hidden_size,
                target.vocab_size,
                taps=spread_taps(target.layers, 3),
                sizes={**attention_sizes(target), "intermediate": inner},
                frequent=frequent_tokens(counts, self.frequent),
            )
        )

    def loss(self, head: Eagle3Head, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        ids = batch_vocabulary(head.config, batch)
        index, valid = batch.ahead(self.steps)
        valid = valid & (batch.parents[batch.sources] >= 0)[:, None]  # a text's first token has no pair
        teacher = batch.logits(batch.sources)
        covered = torch.isin(teacher.argmax(-1), ids)
        teacher = teacher[:, ids]
        total, figures = batch.final.new_zeros(()), {}
        for step, states in enumerate(unrolled(head, batch, index)):
            logits = head.logits(states, batch.lm_head[ids])
            wanted, counted = teacher[index[:, step]], valid[:, step] & covered[index[:, step]]
            count = counted.sum().clamp_min(1)
            total = total + self.decay**step * (soft_cross_entropy(logits, wanted) * counted).sum() / count
            right = (logits.argmax(-1) == wanted.argmax(-1)) & counted
            figures[f"right_{step + 1}"] = right.sum() / count
        return total, figures


def unrolled(head: Eagle3Head, batch: HeadBatch, index: Tensor) -> list[Tensor]:
    """The states [targets, hidden] of every step; index [targets, steps]: from `HeadBatch.ahead`."""
    parents, anchors = batch.parents.clamp_min(0), batch.sources
    features = head.fused(batch.hidden)[parents]
    embedded = functional.embedding(batch.tokens, batch.embedding)
    sees = batch.sees & (batch.parents >= 0)
    before = sees[anchors]
    before[torch.arange(len(anchors), device=before.device), anchors] = (
        False  # each anchor's own pair is computed again
    )
    own = torch.eye(len(anchors), dtype=torch.bool, device=before.device)
    known: list[KeysValues] = [head.keys_values(embedded, features, batch.positions)]
    states, token, found = features[anchors], embedded[anchors], []
    visible = before
    for step in range(index.shape[1]):
        visible = torch.cat([visible, own], 1)
        states, keys_values = head(token, states, batch.positions[anchors] + step, known, visible)
        known.append(keys_values)
        token = functional.embedding(batch.targets[index[:, step]], batch.embedding)
        found.append(states)
    return found


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
