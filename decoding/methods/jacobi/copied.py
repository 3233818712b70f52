"""Copies as guesses with probabilities: what followed the last tokens elsewhere, by the length of the match.

Copies come from the text, the prompt and the conversation's recall, as in prompt lookup; how likely a copied token is to be
right is counted while decoding.
"""

from collections.abc import Sequence

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.records.experience import Experience
from decoding.methods.drafting.ngram_pool import NgramPool

COPIED = (0.0, 0.5, 0.58, 0.75, 0.75, 0.77, 0.8, 0.8, 0.84, 0.88, 0.88, 0.9, 0.94)
"""Prior of a copied token's being right, by the length of the match before it."""

SECOND = 0.3
"""Prior of the first token of a copy whose match is no better than that of another that it differs from, of what is left."""


class CopiedGuesses:
    """Up to `most` copies that differ, of at most `length` tokens each, from one text and from `texts`."""

    def __init__(self, texts: Sequence[Sequence[int]], most: int, length: int, experience: Experience) -> None:
        self._pool, self._most, self._length = NgramPool(0, texts), most, length
        self._right = experience.means("copies right", COPIED)
        self._second = experience.means("second copies right", (SECOND,))
        self._copies: list[tuple[int, tuple[int, ...]]] = []  # with the lengths of their matches, the longest first

    def find(self, tokens: Sequence[int], room: int) -> None:
        """Look up what followed the last of `tokens`."""
        self._copies = []
        for match in self._pool.matched(tokens, min(room, self._length)) if self._most else ():
            if not any(other[: len(match[1])] == match[1] for _, other in self._copies):
                self._copies.append(match)
                if len(self._copies) == self._most:
                    break

    @property
    def agreed(self) -> int:
        """The length of the longest match; 0 without one."""
        return self._copies[0][0] if self._copies else 0

    def shares(self, path: tuple[int, ...], cursor: ConstraintCursor | None) -> dict[int, float]:
        """The copied tokens after a path that `cursor` allows, with their probabilities."""
        shares: dict[int, float] = {}
        for agreed, copy in self._copies:
            if len(copy) > len(path) and copy[: len(path)] == path and copy[len(path)] not in shares:
                token = copy[len(path)]
                if cursor is None or cursor.admits(token):
                    right = self._right[agreed + len(path)]
                    shares[token] = (1.0 - sum(shares.values())) * (self._second[0] if shares else right)
        return shares

    def count(self, committed: Sequence[int]) -> None:
        """Count what was right among the copies."""
        for agreed, copy in self._copies[:1]:
            for place, (guess, token) in enumerate(zip(copy, committed, strict=False)):
                self._right.saw(agreed + place, guess == token)
                if guess != token:
                    break
        firsts = [copy[0] for _, copy in self._copies]
        if len(firsts) > 1 and firsts[1] != firsts[0] != committed[0]:
            self._second.saw(0, firsts[1] == committed[0])
