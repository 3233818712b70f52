"""Copies as guesses with probabilities: what followed the last tokens elsewhere, by the length of the match.

Copies come from the text, the prompt and the conversation's recall, as in prompt lookup; how likely a copied token is to be
right is counted while decoding.
"""

from collections.abc import Sequence

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.records.experience import Experience
from decoding.methods.drafting.ngram_pool import NgramPool

COPIED = (0.0, 0.6, 0.7, 0.83, 0.79, 0.87, 0.84, 0.85, 0.88, 0.9, 0.91, 0.91, 0.92, 0.93, 0.955)
"""Prior of a copied token's being right, by the length of the match before it."""

BEGINNING = (0.6, 0.7, 0.62, 0.78, 0.98, 0.98)
"""The same where nothing is written yet, by the length of the match: 1, 2, 3 and more; of the first token and of later ones. A
copy there is a text that was foretold as a whole.
"""

SECOND = (0.6, 0.9)
"""Prior of a further copy's being right where those before it are wrong: later, and where nothing is written yet."""


class CopiedGuesses:
    """Up to `most` copies that differ, of at most `length` tokens each, from one text and from `texts`. begins: the number of
    tokens before the answer.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], most: int, length: int, experience: Experience, begins: int = 0
    ) -> None:
        self._pool, self._most, self._length = NgramPool(0, texts), most, length
        self._begins, self._at_beginning = begins, False
        self._right = experience.means("copies right", COPIED + BEGINNING)
        self._second = experience.means("second copies right", SECOND)
        self._copies: list[tuple[int, tuple[int, ...]]] = []  # with the lengths of their matches, the longest first
        self._said: dict[tuple[int, ...], tuple[int, list[int]]] = {}  # by path: the first one's case, and the tokens

    def find(self, tokens: Sequence[int], room: int) -> None:
        """Look up what followed the last of `tokens`."""
        self._copies, self._said = [], {}
        self._at_beginning = len(tokens) == self._begins
        for match in self._pool.matched(tokens, min(room, self._length)) if self._most else ():
            if not any(other[: len(match[1])] == match[1] for _, other in self._copies):
                self._copies.append(match)
                if len(self._copies) == self._most:
                    break

    @property
    def agreed(self) -> int:
        """The length of the longest match; 0 without one."""
        return self._copies[0][0] if self._copies else 0

    def _case(self, agreed: int, depth: int) -> int:
        """Of a copied token so deep below a match of this length."""
        if self._at_beginning:
            return len(COPIED) + 2 * (min(agreed, len(BEGINNING) // 2) - 1) + (depth > 0)
        return min(agreed + depth, len(COPIED) - 1)

    def shares(self, path: tuple[int, ...], cursor: ConstraintCursor | None) -> dict[int, float]:
        """The copied tokens after a path that `cursor` allows, with their probabilities."""
        shares: dict[int, float] = {}
        for agreed, copy in self._copies:
            if len(copy) > len(path) and copy[: len(path)] == path and copy[len(path)] not in shares:
                token = copy[len(path)]
                if cursor is None or cursor.admits(token):
                    case = self._case(agreed, len(path))
                    right = self._second[self._at_beginning] if shares else self._right[case]
                    self._said.setdefault(path, (case, []))[1].append(token)
                    shares[token] = (1.0 - sum(shares.values())) * right
        return shares

    def count(self, committed: Sequence[int]) -> None:
        """Count what was right of what the copies said, where they were asked."""
        for place, token in enumerate(committed):
            case, said = self._said.get(tuple(committed[:place]), (0, []))
            if said:
                self._right.saw(case, said[0] == token)
                if len(said) > 1 and said[0] != token:
                    self._second.saw(self._at_beginning, said[1] == token)
