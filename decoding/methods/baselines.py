"""Plain decoding and prompt lookup.

`Plain` never guesses; every other method is compared with it.

`PromptLookup` copies what followed the last tokens where they appeared before (github.com/apoorvumang/prompt-lookup-decoding):
in the prompt, in the text so far and in the conversation's earlier texts. Several matches share one tree. The longer the match,
the more is copied, as in SuffixDecoding (arXiv 2411.04975).
"""

from collections.abc import Sequence

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.ngram_pool import NgramPool, different


class Plain(Method):
    """One token per forward."""

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        """Nothing to remember."""

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft()

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        """Nothing to learn."""


class PromptLookup(Method):
    """Longest match first, then newest; this text before earlier texts.

    max_ngram, min_ngram: lengths of the suffix that is searched for, tried from long to short.
    draft_tokens: the most tokens copied per match. per_matched: tokens copied for each token of the suffix that matches.
    matches: different continuations put into one tree.
    """

    def __init__(
        self, max_ngram: int = 8, min_ngram: int = 1, draft_tokens: int = 16, per_matched: int = 3, matches: int = 1
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        if min(draft_tokens, per_matched, matches) < 1:
            raise ValueError("draft_tokens, per_matched and matches must be 1 or more")
        self._lengths = range(max_ngram, min_ngram - 1, -1)
        self._draft_tokens, self._per_matched, self._matches = draft_tokens, per_matched, matches

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._pool = NgramPool(0, context.recall.sequences)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        most = min(room, self._draft_tokens)
        guesses = self._pool.following(tokens, most, self._lengths, self._per_matched)
        return Draft.trie(different(guesses, self._matches))

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        """Nothing to learn: it reads only the text."""
