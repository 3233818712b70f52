"""EAGLE-3's training-time test (arXiv 2503.01840, 3.2): the drafter is unrolled on its own states, as in drafting.

Step 0 reads the target's features; step k reads the output of step k - 1 at the same anchor, and sees the context and its own
earlier steps, like a chain in decoding. The loss is the sum over steps of decay^k times the soft cross-entropy to the target's
distribution over the draft vocabulary; positions whose most likely token is outside it are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.modules.eagle3 import Eagle3Head
from decoding.heads.modules.layer import KeysValues
from decoding.heads.taps import spread_taps
from decoding.training.head_kinds.sizes import attention_sizes
from decoding.training.heads.objective import HeadBatch
from decoding.training.heads.vocabulary import batch_vocabulary, frequent_tokens, soft_cross_entropy


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
    before[torch.arange(len(anchors), device=before.device), anchors] = False  # each anchor's own pair is computed anew
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
