"""EAGLE-3 (arXiv 2503.01840) with EAGLE-2's dynamic tree: the drafter runs once per level, on its own states.

Its keys and values are kept for committed tokens alone, computed from the target's own states; those of drafted tokens are
dropped after the round.
"""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadUnavailable, find_head
from decoding.heads.modules.eagle3 import Eagle3Head
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.head_runtimes import eagle3_runtime
from decoding.methods.drafting.trees import LEAST, Bounds, Frontier, Guesses, beam, offered


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

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._drafter, self._cursor = eagle3_runtime(self._head, context, prompt), context.cursor
        if hidden is not None:
            self._drafter.read(hidden)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        drafter = self._drafter
        drafter.pair(tokens)
        if not drafter.pairs or room < 1:
            return Draft()
        cursor, state = self._cursor(), drafter.root()
        for position in range(drafter.pairs + 1, len(tokens)):  # forced tokens, which the target has not read yet
            state = drafter.grow([tokens[position]], state, [0], position)
        states = [state]

        def expand(frontier: Frontier) -> Guesses:
            position = len(tokens) - 1 + frontier.depth
            if frontier.depth:
                states.append(drafter.grow(frontier.tokens, states[-1], frontier.rows, position))
            return drafter.best(states[-1], position + 1, offered(self._width, cursor))

        return beam(expand, self._width, min(self._depth, room), self._bounds, self._width, cursor)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._drafter.read(committed_hidden(draft, scores, verdict))
