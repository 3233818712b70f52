"""Plain autoregressive decoding, which never guesses. Every other method is compared with it."""

from collections.abc import Sequence

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict


class Plain(Method):
    """One token per forward."""

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        """Nothing to remember."""

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft()

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Nothing to learn."""
