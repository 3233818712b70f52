"""EAGLE-3's drafter on torch's operators."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from decoding.engine.target import Array
from decoding.heads.modules.eagle3 import Eagle3Head
from decoding.heads.on_torch.branches import Branches, joined, no_rows
from decoding.heads.on_torch.tensor_context import TensorContext
from decoding.heads.on_torch.vocabulary import DraftVocabulary
from kernels.transfer import sent


class TorchEagle3:
    """One text's drafter. See `decoding.methods.drafting.head_runtimes.Eagle3Runtime`."""

    def __init__(self, head: Eagle3Head, context: TensorContext, prompt: Sequence[int]) -> None:
        self._head, self._embedding, frequent = head, context.embedding, head.config.frequent
        own = head.size("own_lm_head") and frequent
        self._vocabulary = (
            DraftVocabulary(context, frequent) if own else DraftVocabulary.for_prompt(context, frequent, prompt)
        )
        self._rows = no_rows(head.size("kv_heads"), head.size("head_dim"), head.fc.weight)
        self._features = head.fc.weight.new_empty(0, head.config.hidden)  # of tokens that have no pair yet
        self.pairs, self._state = 0, self._features

    @torch.inference_mode()
    def read(self, hidden: Array) -> None:
        self._features = torch.cat([self._features, self._head.fused(torch.as_tensor(hidden))])

    @torch.inference_mode()
    def pair(self, tokens: Sequence[int]) -> None:
        count = len(self._features)
        if not count:
            return
        start = self.pairs + 1  # position of the first token that is fed
        device = self._embedding.device
        ids, positions = sent(tokens[start : start + count], device), torch.arange(count, device=device)
        seen = torch.ones(count, self.pairs + count, dtype=torch.bool, device=device).tril(self.pairs)
        states, own = self._head(
            functional.embedding(ids, self._embedding), self._features, start + positions, [self._rows], seen
        )
        self._rows, self._state = joined(self._rows, own), states[-1:]
        self._features, self.pairs = self._features[:0], self.pairs + count

    def root(self) -> Tensor:
        self._branches = Branches([self._rows])
        return self._state

    @torch.inference_mode()
    def grow(self, tokens: Sequence[int], states: Tensor, parents: Sequence[int], position: int) -> Tensor:
        device, branches = self._embedding.device, self._branches
        embedded = functional.embedding(sent(tokens, device), self._embedding)
        positions = torch.full((len(tokens),), position, device=device)
        visible = branches.visible(parents)
        states, own = self._head(embedded, states[sent(parents, device)], positions, branches.known(), visible)
        branches.grow([own])
        return states

    @torch.inference_mode()
    def best(self, states: Tensor, position: int, count: int) -> tuple[Tensor, Tensor]:
        positions = torch.full((len(states),), position, device=states.device)
        logits = self._head.logits(states, self._vocabulary.rows)
        return self._vocabulary.best(self._vocabulary.ranked(logits, positions), count)
