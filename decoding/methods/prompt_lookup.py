"""Prompt lookup: copy what followed the last tokens the previous times they appeared.

github.com/apoorvumang/prompt-lookup-decoding. Looks in the prompt, in the text so far and in the conversation's recall;
several matches share one tree.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from decoding.draft import Draft
from decoding.method import Context
from decoding.target import Scores
from decoding.verify import Verdict


class PromptLookup:
    """Longest match first, then newest; this text before earlier texts.

    max_ngram, min_ngram: lengths of the suffix that is searched for, tried from long to short.
    draft_tokens: tokens copied per match.
    matches: different continuations put into one tree.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, draft_tokens: int = 8, matches: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        if draft_tokens < 1 or matches < 1:
            raise ValueError("draft_tokens and matches must be 1 or more")
        self._lengths = range(max_ngram, min_ngram - 1, -1)
        self._draft_tokens, self._matches = draft_tokens, matches

    def begin(self, prompt: Sequence[int], hidden: Tensor | None, context: Context) -> None:
        self._texts = [_IndexedText(self._lengths)]
        for remembered in context.recall.sequences:
            text = _IndexedText(self._lengths)
            text.extend(remembered)
            self._texts.append(text)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        own = self._texts[0]
        own.extend(tokens[len(own.tokens) :])
        guesses: list[tuple[int, ...]] = []
        for guess in self._continuations(tokens, min(room, self._draft_tokens)):
            if len(guesses) == self._matches:
                break
            if not any(known[: len(guess)] == guess for known in guesses):
                guesses.append(guess)
        return Draft.trie(guesses)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """The text itself is all that is learned from."""

    def _continuations(self, tokens: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
        for length in self._lengths:
            suffix = tuple(tokens[-length:])
            for text in self._texts:
                yield from text.after(suffix, count)


class _IndexedText:
    """A text and where each of its n-grams ends."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._lengths = lengths
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for length in self._lengths:
                if length <= end:
                    self._ends.setdefault(tuple(self.tokens[end - length :]), []).append(end)

    def after(self, suffix: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
        """Up to `count` tokens after each earlier place where `suffix` stands, newest first."""
        for end in reversed(self._ends.get(suffix, [])):
            if following := tuple(self.tokens[end : end + count]):
                yield following
