"""EAGLE-3 (arXiv 2503.01840) with EAGLE-2's dynamic tree: the drafter runs once per level, on its own states.

Its keys and values are kept for committed tokens alone, computed from the target's own states; those of drafted tokens are
dropped after the round.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadUnavailable, find_head, to_target
from decoding.heads.modules.eagle3 import Eagle3Head
from decoding.heads.tensor_context import TensorContext
from decoding.methods.drafters.branches import Branches, joined, no_rows
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.draft_vocabulary import DraftVocabulary
from decoding.methods.drafting.trees import LEAST, Bounds, Frontier, beam, offered


class Eagle3(Method):
    """head: a folder, or "auto" for the shipped one. budget, least: see `Bounds`. width: nodes expanded per level.

    depth: levels at most. The released code uses 59 nodes, width 10 and depth 8, for much slower models.
    """

    kind: ClassVar[str] = "eagle3"

    def __init__(
        self, head: Head | str = "auto", budget: int = 16, width: int = 4, depth: int = 6, least: float = LEAST
    ) -> None:
        found = find_head(self.kind, head)
        if not isinstance(found, Eagle3Head):
            raise HeadUnavailable(f"{self.kind} cannot draft with a head of kind {found.config.kind}")
        if min(width, depth) < 1:
            raise ValueError(f"width and depth must be 1 or more, not {width} and {depth}")
        self._head, self._bounds, self._width, self._depth = found, Bounds(budget, least), width, depth
        self.taps = found.config.taps

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        tensors = TensorContext.of(context)
        head = to_target(self._head, tensors)
        self._embedding, self._cursor = tensors.embedding, context.cursor
        frequent = head.config.frequent
        own = head.size("own_lm_head") and frequent
        self._vocabulary = (
            DraftVocabulary(tensors, frequent) if own else DraftVocabulary.for_prompt(tensors, frequent, prompt)
        )
        self._rows = no_rows(head.size("kv_heads"), head.size("head_dim"), self._head.fc.weight)
        self._features = self._head.fc.weight.new_empty(0, head.config.hidden)  # of tokens that have no pair yet
        self._pairs, self._state = 0, self._features
        self._read(hidden)

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._pair(tokens)
        if not self._pairs or room < 1:
            return Draft()
        cursor = self._cursor()
        branches, state = Branches([self._rows]), self._state
        for position in range(self._pairs + 1, len(tokens)):  # forced tokens, which the target has not read yet
            state = self._next(branches, [tokens[position]], state, [0], position)
        states = [state]

        def expand(frontier: Frontier) -> tuple[Tensor, Tensor]:
            position = len(tokens) - 1 + frontier.depth
            if frontier.depth:
                states.append(self._next(branches, frontier.tokens, states[-1], frontier.rows, position))
            positions = torch.full((len(states[-1]),), position + 1, device=state.device)
            logits = self._head.logits(states[-1], self._vocabulary.rows)
            return self._vocabulary.best(self._vocabulary.ranked(logits, positions), offered(self._width, cursor))

        return beam(expand, self._width, min(self._depth, room), self._bounds, self._width, cursor)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._read(committed_hidden(draft, scores, verdict))

    @torch.inference_mode()
    def _read(self, hidden: Array | None) -> None:
        """Take in the states [new, taps, hidden] of the next tokens."""
        if hidden is not None and len(hidden):
            self._features = torch.cat([self._features, self._head.fused(torch.as_tensor(hidden))])

    def _pair(self, tokens: Sequence[int]) -> None:
        """Feed each new feature, paired with the token after it, once."""
        count = len(self._features)
        if not count:
            return
        start = self._pairs + 1  # position of the first token that is fed
        device = self._embedding.device
        ids, positions = torch.tensor(tokens[start : start + count], device=device), torch.arange(count, device=device)
        seen = torch.ones(count, self._pairs + count, dtype=torch.bool, device=device).tril(self._pairs)
        states, own = self._head(
            functional.embedding(ids, self._embedding), self._features, start + positions, [self._rows], seen
        )
        self._rows, self._state = joined(self._rows, own), states[-1:]
        self._features, self._pairs = self._features[:0], self._pairs + count

    def _next(
        self, branches: Branches, tokens: Sequence[int], states: Tensor, rows: Sequence[int], position: int
    ) -> Tensor:
        """The states of drafted tokens at `position`; rows: the index of each one's parent in `states`."""
        device = self._embedding.device
        embedded = functional.embedding(torch.tensor(tokens, device=device), self._embedding)
        positions = torch.full((len(tokens),), position, device=device)
        visible = branches.visible(rows)
        states, own = self._head(embedded, states[list(rows)], positions, branches.known(), visible)
        branches.grow([own])
        return states
