"""A drafter cut from the target's first layers and distilled: cross-entropy to the target's own distribution on its answers.

Forward KL on what the target wrote is what DistillSpec (arXiv 2310.08461) calls supervised distillation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.modules.small_lm import SmallLm
from decoding.training.head_kinds.sizes import attention_sizes
from decoding.training.heads.objective import HeadBatch
from decoding.training.heads.vocabulary import batch_vocabulary, frequent_tokens, soft_cross_entropy


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
