"""Medusa's heads on torch's operators."""

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.engine.target import Array
from decoding.heads.modules.medusa import MedusaHead
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import DraftVocabulary


class TorchMedusa:
    """One text's Medusa heads. See `decoding.methods.drafting.head_runtimes.MedusaRuntime`."""

    def __init__(self, head: MedusaHead, context: TensorContext, prompt: Sequence[int]) -> None:
        self._head = head
        self._vocabulary = DraftVocabulary.for_prompt(context, head.config.frequent, prompt)

    @torch.inference_mode()
    def best(self, state: Array, heads: range, position: int, count: int) -> tuple[Tensor, Tensor]:
        vocabulary = self._vocabulary
        states = self._head(torch.as_tensor(state)[None])
        logits = self._head.logits(states, vocabulary.rows, vocabulary.ids)[0, heads.start : heads.stop]
        positions = torch.arange(position, position + len(logits), device=logits.device)
        return vocabulary.best(vocabulary.ranked(logits, positions), count)
