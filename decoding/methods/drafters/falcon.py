"""Falcon (arXiv 2412.12639): a drafter that computes k levels of the tree per pass.

The released code uses fixed trees of 106 to 168 nodes; here the tree holds the `budget` most probable paths that a beam search
over whole glances finds. The released code also runs k - 1 committed tokens through the target again to get their features;
here the features of all committed tokens are kept.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from decoding.engine.constraint_cursor import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadUnavailable, find_head, to_target
from decoding.heads.modules.falcon import FalconHead, pairs_of, windows_of
from decoding.heads.tensor_context import TensorContext
from decoding.methods.drafters.branches import Branches, joined, no_rows
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.draft_vocabulary import DraftVocabulary
from decoding.methods.drafting.trees import LEAST, Bounds, Level, admitted, budgeted, offered


class Falcon(Method):
    """head: a folder, or "auto" for the shipped one; its k is the number of tokens of a glance. budget, least: see `Bounds`.
    width: paths that the next pass continues. passes: passes of the drafter, so paths have at most k * passes tokens. top_k:
    guesses per position.
    """

    kind: ClassVar[str] = "falcon"

    def __init__(
        self,
        head: Head | str = "auto",
        budget: int = 16,
        width: int = 3,
        passes: int = 3,
        top_k: int = 4,
        least: float = LEAST,
    ) -> None:
        found = find_head(self.kind, head)
        if not isinstance(found, FalconHead):
            raise HeadUnavailable(f"{self.kind} cannot draft with a head of kind {found.config.kind}")
        if min(width, passes, top_k) < 1:
            raise ValueError("width, passes and top_k must be 1 or more")
        self._head, self._bounds = found, Bounds(budget, least)
        self._width, self._passes, self._top_k = width, passes, top_k
        self.taps = found.config.taps

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        tensors = TensorContext.of(context)
        to_target(self._head, tensors)
        self._embedding, self._cursor = tensors.embedding, context.cursor
        self._vocabulary = DraftVocabulary.for_prompt(tensors, self._head.config.frequent, prompt)
        self._text = _Text(self._head)
        if hidden is not None:
            self._text.read(torch.as_tensor(hidden[:, -1]))

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        k, text = self._head.k, self._text
        text.pair(tokens, self._embedding)
        if text.pairs < k or room < 1:
            return Draft()
        cursor = self._cursor()
        paths, guesses = _Paths(tokens, room, self._bounds, self._top_k), offered(self._top_k, cursor)
        branches, line, glances = text.branches(), text.line()[None], [_Glance(0.0, cursor)]
        first = text.pairs - k + 1  # position of the first token of the glance
        late = len(tokens) - 1 - text.pairs  # forced tokens, which the target has not read yet
        for _ in range(self._passes + -(-late // k)):
            features = self._pass(branches, line, [glance.row for glance in glances], first)
            first += k
            ends = [
                replace(end, row=row)
                for row, glance in enumerate(glances)
                for end in paths.grow(glance, first, self._levels(features[row], first, guesses))
            ]
            glances = heapq.nlargest(self._width, ends, key=lambda glance: glance.score)
            if not glances:
                break
            line = self._next(line, features, glances)
        return paths.draft()

    @torch.inference_mode()
    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._text.read(torch.as_tensor(committed_hidden(draft, scores, verdict)[:, -1]))

    def _pass(self, branches: Branches, line: Tensor, parents: Sequence[int], first: int) -> Tensor:
        """Features [glances, k, hidden] of the positions after each glance; parents: indices in the previous level."""
        k, head = self._head.k, self._head
        x = head.read(windows_of(line, head.memory).flatten(0, 1))
        positions = torch.arange(first, first + k, device=x.device).repeat(len(line))
        known = [branches.known(layer) for layer in range(head.size("layers"))]
        features, own = head(x, positions, known, branches.visible(parents))
        branches.grow(own)
        states: Tensor = features.view(len(line), k, -1)
        return states

    def _levels(self, features: Tensor, first: int, count: int) -> list[Level]:
        """The best `count` guesses per position from features [k, hidden]; the first position is `first`."""
        positions = torch.arange(first, first + len(features), device=features.device)
        ranked = self._vocabulary.ranked(self._vocabulary.logits(features), positions)
        return self._vocabulary.levels(ranked, count)

    def _next(self, line: Tensor, features: Tensor, glances: Sequence["_Glance"]) -> Tensor:
        """The pairs of each path's last glance, and as many before it as the LSTM reads."""
        rows = [glance.row for glance in glances]
        tokens = torch.tensor([glance.tokens for glance in glances], device=line.device)
        new = pairs_of(functional.embedding(tokens, self._embedding), features[rows])
        return torch.cat([line[rows][:, self._head.k :], new], 1)


@dataclass(frozen=True, slots=True)
class _Glance:
    """A path to be continued. cursor: in its constraint; row: its parent's; node: its last one; tokens: its last k."""

    score: float
    cursor: ConstraintCursor | None
    row: int = 0
    node: int = ROOT
    tokens: tuple[int, ...] = ()


class _Paths:
    """The tree of one round under construction. At positions that are text already, every path has the text's token."""

    def __init__(self, text: Sequence[int], room: int, bounds: Bounds, most: int) -> None:
        self._text, self._end, self._bounds, self._most = text, len(text) + room, bounds, most
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []

    def grow(self, glance: _Glance, first: int, levels: Sequence[Level]) -> list[_Glance]:
        """Add the best paths over the levels after a glance, from position `first` on; returns those that reach the last."""
        paths = [replace(glance, tokens=())]
        for position, level in enumerate(levels, first):
            if position >= self._end:
                return []
            if position < len(self._text):
                paths = [replace(path, tokens=(*path.tokens, self._text[position])) for path in paths]
                continue
            paths = [each for path in paths for each in self._children(path, level)]
            best = heapq.nlargest(self._bounds.budget, paths, key=lambda path: path.score)
            paths = [replace(path, cursor=path.cursor and path.cursor.after(path.tokens[-1])) for path in best]
        return paths

    def draft(self) -> Draft:
        return budgeted(self._tokens, self._parents, self._scores, self._bounds.budget)

    def _children(self, path: _Glance, level: Level) -> Iterator[_Glance]:
        """Add a path's children. They keep the path's cursor, because few of them are continued."""
        for token, score in islice(admitted(level, path.cursor, self._bounds.floor - path.score), self._most):
            self._tokens.append(token)
            self._parents.append(path.node)
            self._scores.append(path.score + score)
            yield replace(path, score=self._scores[-1], node=len(self._tokens) - 1, tokens=(*path.tokens, token))


class _Text:
    """What the drafter keeps of the committed text: the last pairs, and every pair's keys and values."""

    def __init__(self, head: FalconHead) -> None:
        self._head, width, like = head, head.config.hidden, next(head.parameters())
        self._features = like.new_empty(0, width)  # of tokens that have no pair yet
        self._line = like.new_zeros(head.memory + head.k - 1, 2 * width)  # a text is preceded by zeros
        self._known = [no_rows(head.size("kv_heads"), head.size("head_dim"), like) for _ in head.layers]
        self.pairs = 0

    def read(self, features: Tensor) -> None:
        """Take in the features [new, hidden] of the next tokens."""
        self._features = torch.cat([self._features, features])

    def pair(self, tokens: Sequence[int], embedding: Tensor) -> None:
        """Feed each new feature, paired with the token after it, once."""
        count, head = len(self._features), self._head
        if not count:
            return
        first, device = self.pairs + 1, embedding.device
        ids = torch.tensor(tokens[first : first + count], device=device)
        self._line = torch.cat([self._line, pairs_of(functional.embedding(ids, embedding), self._features)])
        windows = windows_of(self._line[head.k :], head.memory)
        visible = torch.ones(count, self.pairs + count, dtype=torch.bool, device=device).tril(self.pairs)
        positions = torch.arange(first, first + count, device=device)
        _, own = head(head.read(windows), positions, [[each] for each in self._known], visible)
        self._known = [joined(before, new) for before, new in zip(self._known, own, strict=True)]
        self._line = self._line[count:]
        self._features, self.pairs = self._features[:0], self.pairs + count

    def line(self) -> Tensor:
        """The last k pairs and as many before them as the LSTM reads."""
        return self._line

    def branches(self) -> Branches:
        """A new tree whose committed rows are the pairs before the last k."""
        before = self.pairs - self._head.k
        return Branches([(keys[:, :before], values[:, :before]) for keys, values in self._known], self._head.k)
