"""The draft vocabulary on torch's operators: logits, the target's noise, and the best guesses.

`decoding.heads.draft_tokens` says which tokens those are.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from decoding.engine.sampling.tensor_choice import rank
from decoding.heads.draft_tokens import draft_ids
from decoding.heads.on_torch.tensor_context import TensorContext
from kernels.transfer import fetched_pair


def log_probabilities(scores: Tensor) -> Tensor:
    """Log-softmax over the last dimension. NaN becomes -inf, so that a head that overflows costs speed only."""
    return scores.log_softmax(-1).nan_to_num(nan=float("-inf"), neginf=float("-inf"))


class DraftVocabulary:
    """Token ids, and the LM head's rows for them.

    ids: [size] ascending; None drafts the target's whole vocabulary. Tensors [..., size] have one entry per id, in that order.
    """

    def __init__(self, context: TensorContext, ids: Iterable[int] | None = None) -> None:
        self._sampler = context.sampler
        device = context.lm_head.device
        whole = ids is None
        self.ids = torch.arange(len(context.lm_head)) if ids is None else torch.tensor(sorted(set(ids)))
        self.ids = self.ids.to(device)
        self.rows = context.lm_head if whole else context.lm_head[self.ids]  # [size, hidden]

    @classmethod
    def for_prompt(cls, context: TensorContext, frequent: Iterable[int], prompt: Iterable[int]) -> "DraftVocabulary":
        """The frequent tokens, the prompt's and the recall's; the whole vocabulary if `frequent` is empty."""
        always = tuple(frequent)
        return cls(context, draft_ids(context, always, prompt) if always else None)

    def logits(self, states: Tensor) -> Tensor:
        """[..., hidden] -> [..., size]."""
        return states @ self.rows.T

    def ranked(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Log-probabilities [rows, size], fp32, that a token will be the target's choice at `positions` [rows].

        At T > 0 the target's choice is an argmax over logits / T + keyed noise, and the noise is known: only the target's
        logits are uncertain. If their error follows a Gumbel distribution, the softmax of the noisy guesses is exact.
        """
        return log_probabilities(self.noisy(logits, positions))

    def noisy(self, logits: Tensor, positions: Tensor) -> Tensor:
        """`ranked` before normalisation; linear in the logits, with the factor `sharpness`."""
        return rank(self._sampler, logits, positions[:, None], self.ids)

    @property
    def sharpness(self) -> float:
        """1 / T; 1 at T = 0."""
        return 1.0 / (self._sampler.temperature or 1.0)

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The best `count` per row, best first: token ids and scores, each [rows, count], on the processor."""
        top = scores.topk(min(count, scores.shape[-1]), dim=-1)
        return fetched_pair(self.ids[top.indices], top.values)

    def guesses(self, states: Tensor, position: int, count: int, step: int = 1) -> tuple[Tensor, Tensor]:
        """`best` for states [rows, hidden], of which row i guesses `position + i * step`, with log-probabilities."""
        positions = position + step * torch.arange(len(states), device=states.device)
        return self.best(self.ranked(self.logits(states), positions), count)
