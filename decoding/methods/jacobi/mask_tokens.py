"""Mask tokens in the draft: the target itself predicts several tokens ahead, in the forward that verifies.

A few mask tokens follow the root and each of the most probable guesses. The target's logits at the masks after the accepted
path are marginals of the positions after the bonus token, given correct text only. The next draft is the tree of their most
probable prefixes, together with copies of what followed the last tokens elsewhere. PaSS (arXiv 2311.13581) and BiTA
(arXiv 2401.12522) train embeddings for such tokens. Here a target has weights of its own for them (`train masks`), or a
checkpoint learns to use one token of its vocabulary as the mask (`train jacobi --sweeps 0 --first-guess mask`).
"""

from collections.abc import Sequence
from dataclasses import replace

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.methods.drafting.likely import LikelyLevels
from decoding.methods.drafting.ngram_pool import NgramPool, different
from decoding.methods.drafting.trees import LEAST, Bounds, best_paths, offered, tail_of
from decoding.methods.jacobi.first_guess import guessable, strided_chain, text_scores
from decoding.methods.jacobi.foreseen import said_ahead


class MaskTokens(Method):
    """masks: positions for which masks follow a guess. masked: how many of the most probable guesses have masks after them,
    besides the root and the copies. budget, least: bounds of the guesses, see `Bounds`. top_k: guesses per position.
    copies, copied_tokens, per_matched: prompt lookup's `matches`, `draft_tokens` and `per_matched`; 0 copies nothing.
    followers: whether what follows what in the text corrects what masks say.
    sure: a copy of at least this many tokens (its match was long) is drafted alone, with masks after its end only; 0: never.
    """

    def __init__(
        self,
        masks: int = 3,
        masked: int = 3,
        budget: int = 6,
        top_k: int = 8,
        least: float = LEAST,
        copies: int = 1,
        copied_tokens: int = 16,
        per_matched: int = 3,
        sure: int = 6,
        followers: bool = True,
    ) -> None:
        if min(masks, top_k) < 1 or min(masked, copies, copied_tokens, per_matched, sure) < 0:
            raise ValueError("masks and top_k must be 1 or more, masked, sure, copies and what is copied not negative")
        self._masks, self._masked, self._top_k = masks, masked, top_k
        self._copies, self._copied_tokens, self._per_matched = copies, copied_tokens, per_matched
        self._bounds, self._sure, self._followers = Bounds(budget, least), sure, followers

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._stride = 1 + context.ahead
        self._chain = strided_chain(prompt, context.mask_tokens, self._masks, self._stride)
        self._sampler, self._cursor = context.sampler, context.cursor
        self._pairs = text_scores(context, prompt, self._followers)
        self._tokens = guessable(context, prompt)
        self._pool = NgramPool(0, context.recall.sequences)
        self._length = 0  # of the text before the draft
        self._first = 0  # position of the first level
        self._levels: LikelyLevels | None = None

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self._length, cursor = len(tokens), self._cursor()
        following = self._pool.following(tokens, min(room, self._copied_tokens), per_agreed=self._per_matched)
        copies = [_allowed_run(copy, cursor) for copy in different(following, self._copies)]
        if self._sure and copies and len(copies[0]) >= self._sure:
            return self._tree(copies[:1], copies[:1])
        tree = self._guessed(tokens, room, cursor)
        guesses = [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]
        return self._tree([*guesses, *copies], [(), *guesses[: self._masked], *copies])

    def _guessed(self, tokens: Sequence[int], room: int, cursor: ConstraintCursor | None) -> Draft:
        """The most probable prefixes of what the masks say."""
        if self._pairs:
            self._pairs.grow(tokens)
        if (levels := self._levels) is None:
            return Draft()
        taken = max(len(tokens) - self._first, 0)  # positions that forced tokens took
        count = min(len(levels) - taken, room)
        return best_paths(
            lambda depth, tail: levels.level(taken + depth, tail), count, tail_of(tokens), self._bounds, cursor
        )

    def _tree(self, paths: Sequence[tuple[int, ...]], masked: Sequence[tuple[int, ...]]) -> Draft:
        """`paths`, and masks after the ends of those in `masked`."""
        drafted = Draft.trie([*paths, *(path + self._chain for path in masked)])
        return replace(drafted, context=range(len(drafted)), masks=self._chain)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        found = draft.below(verdict.path[-1] if verdict.path else ROOT, self._chain)
        self._first, self._levels = self._length + len(verdict.path) + 1, None
        if found:
            count = offered(self._top_k, self._cursor())
            logits = said_ahead(scores, found, self._tokens, self._stride)
            self._levels = LikelyLevels(self._sampler, logits, self._first, count, self._pairs, self._tokens)


def _allowed_run(path: tuple[int, ...], cursor: ConstraintCursor | None) -> tuple[int, ...]:
    """The path up to its first token that is not allowed."""
    if cursor is None:
        return path
    for count, token in enumerate(path):
        if not cursor.admits(token):
            return path[:count]
        cursor = cursor.after(token)
    return path
