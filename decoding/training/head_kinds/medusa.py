"""Medusa-1: cross-entropy of every head with the token that it should guess; the target is frozen (arXiv 2401.10774, 2.2.1)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.checkpoints.model_config import ModelConfig
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.modules.medusa import MedusaHead
from decoding.training.heads.objective import HeadBatch
from decoding.training.heads.vocabulary import batch_vocabulary, cross_entropy, frequent_tokens, places


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
