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

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadUnavailable, find_head
from decoding.heads.modules.falcon import FalconHead
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.head_runtimes import falcon_runtime
from decoding.methods.drafting.trees import LEAST, Bounds, Level, admitted, budgeted, levels, offered


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
        self._drafter, self._cursor = falcon_runtime(self._head, context, prompt), context.cursor
        if hidden is not None:
            self._drafter.read(hidden[:, -1])

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        k, drafter = self._head.k, self._drafter
        drafter.pair(tokens)
        if drafter.pairs < k or room < 1:
            return Draft()
        cursor = self._cursor()
        paths, count = _Paths(tokens, room, self._bounds, self._top_k), offered(self._top_k, cursor)
        line, glances = drafter.root(), [_Glance(0.0, cursor)]
        first = drafter.pairs - k + 1  # position of the first token of the glance
        late = len(tokens) - 1 - drafter.pairs  # forced tokens, which the target has not read yet
        for _ in range(self._passes + -(-late // k)):
            features = drafter.glance(line, [glance.row for glance in glances], first)
            first += k
            ends = [
                replace(end, row=row)
                for row, glance in enumerate(glances)
                for end in paths.grow(glance, first, levels(drafter.best(features[row], first, count)))
            ]
            glances = heapq.nlargest(self._width, ends, key=lambda glance: glance.score)
            if not glances:
                break
            line = drafter.following(line, features, *zip(*((each.row, each.tokens) for each in glances), strict=True))
        return paths.draft()

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._drafter.read(committed_hidden(draft, scores, verdict)[:, -1])


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
