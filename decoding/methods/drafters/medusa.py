"""Medusa (arXiv 2401.10774): guesses for several positions at once from the last hidden state, without a pass of a drafter.

The released code verifies one fixed tree of 63 nodes; here each round's tree holds the `budget` most probable paths of that
round, so no fixed tree of that size is more probable. Typical acceptance is left out: it is not lossless.
"""

from collections.abc import Sequence
from typing import ClassVar

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadUnavailable, find_head
from decoding.heads.modules.medusa import MedusaHead
from decoding.methods.drafting.committed_states import committed_hidden
from decoding.methods.drafting.head_runtimes import medusa_runtime
from decoding.methods.drafting.trees import LEAST, Bounds, best_first, levels, offered


class Medusa(Method):
    """head: a folder, or "auto" for the shipped one. budget, least: see `Bounds`. top_k: guesses per position."""

    kind: ClassVar[str] = "medusa"

    def __init__(self, head: Head | str = "auto", budget: int = 16, top_k: int = 10, least: float = LEAST) -> None:
        found = find_head(self.kind, head)
        if not isinstance(found, MedusaHead):
            raise HeadUnavailable(f"{self.kind} cannot draft with a head of kind {found.config.kind}")
        if top_k < 1:
            raise ValueError(f"top_k must be 1 or more, not {top_k}")
        self._head, self._bounds, self._top_k = found, Bounds(budget, least), top_k
        self.taps = found.config.taps

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._drafter, self._cursor = medusa_runtime(self._head, context, prompt), context.cursor
        self._seen = 0  # tokens whose states were read
        self._last: Array | None = None  # state [hidden] of the last of them
        if hidden is not None:
            self._read(hidden)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        late = len(tokens) - 1 - self._seen  # forced tokens, which the target has not read yet
        heads = range(late, min(late + room, self._head.size("heads")))
        if self._last is None or not heads:
            return Draft()
        cursor = self._cursor()
        guesses = self._drafter.best(self._last, heads, len(tokens), offered(self._top_k, cursor))
        return best_first(levels(guesses), self._bounds, cursor)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._read(committed_hidden(draft, scores, verdict))

    def _read(self, hidden: Array) -> None:
        """Take in the states [new, taps, hidden] of the next tokens."""
        if len(hidden):
            self._seen, self._last = self._seen + len(hidden), hidden[-1, -1]
