"""What a target says at mask tokens, as guesses for the positions after the accepted path (see `mask_tokens`)."""

from collections.abc import Sequence

from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context
from decoding.engine.target import Scores
from decoding.engine.verify import Verdict
from decoding.methods.drafting.likely import LikelyLevels
from decoding.methods.drafting.trees import Level, offered, tail_of
from decoding.methods.jacobi.first_guess import guessable, mask_chain, masks_of, text_scores


class ForeseenGuesses:
    """The guesses of one text. chain: the masks that a draft may hang after a node, at most `most`. count: guesses of each.
    followers: whether what follows what in the text corrects them.
    """

    def __init__(self, prompt: Sequence[int], context: Context, most: int, count: int, followers: bool = True) -> None:
        self.chain = mask_chain(masks_of(prompt, context.mask_tokens), most)
        self._context, self._tokens, self._count = context, guessable(context, prompt), count
        self._levels: LikelyLevels | None = None
        self._first = 0  # position of the first level
        self._taken = 0  # how many of its positions the text has passed
        self._tail = tail_of(prompt)  # of the text
        self._pairs = text_scores(context, prompt, followers)

    def stand(self, tokens: Sequence[int]) -> None:
        """The next draft follows `tokens`."""
        self._taken, self._tail = max(len(tokens) - self._first, 0), tail_of(tokens)
        if self._pairs:
            self._pairs.grow(tokens)

    @property
    def ahead(self) -> int:
        """For how many positions there are guesses."""
        return max(len(self._levels) - self._taken, 0) if self._levels else 0

    def level(self, path: tuple[int, ...]) -> Level | None:
        """The guesses after a path."""
        if self._levels is None or len(path) >= self.ahead:
            return None
        return self._levels.level(self._taken + len(path), tail_of((*self._tail, *path[-2:])))

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict, first: int) -> None:
        """Read the masks after the accepted path: those of its last node that has any, of which the text has passed some.
        first: position of the token after the bonus. Where no mask is new, older ones still say what is ahead.
        """
        if found := self._fresh(draft, verdict.path):
            context, count = self._context, offered(self._count, self._context.cursor())
            logits = scores.among(found, self._tokens)
            self._levels = LikelyLevels(context.sampler, logits, first, count, self._pairs, self._tokens)
            self._first = first

    def _fresh(self, draft: Draft, path: Sequence[int]) -> list[int]:
        """The masks of a draft that say something about what follows the token after an accepted path."""
        if not draft.masks or not any(token in draft.masks for token in draft.tokens):
            return []
        for passed, node in enumerate((*path[::-1], ROOT)):
            if len(found := draft.below(node, self.chain)) > passed:
                return found[passed:]
        return []
