"""Finds what followed the last tokens elsewhere, in texts and in rejected guesses, as candidates for verification.

The rejection recycling of Jacobi Forcing (arXiv 2512.14681): a guess that was right but misplaced is found again when the
text reaches its first token.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

CONTEXTS = range(8, 0, -1)  # how many last tokens are compared, by default; a longer match ranks no higher


class NgramPool:
    """The `size` sequences that were added last, and fixed `texts` in order of preference.

    Token ids are kept as characters and searched for with `str.rfind`: an index of every recalled text would cost each
    generation more than its few dozen searches do.
    """

    def __init__(self, size: int, texts: Iterable[Sequence[int]] = ()) -> None:
        self._latest: deque[str] = deque(maxlen=size)
        self._texts = [_spelled_once(tuple(text)) for text in texts]
        self._known: list[int] = []  # the text that was looked for last, and its spelling
        self._spelling = ""

    def add(self, sequence: Sequence[int]) -> None:
        self._latest.appendleft(_spelled(sequence))

    def following(
        self, text: Sequence[int], length: int, contexts: range = CONTEXTS, per_agreed: int | None = None
    ) -> Iterator[tuple[int, ...]]:
        """Up to `length` tokens after every occurrence of the last token of `text`, in the pool or in `text` itself.

        The longest matches with the end of `text` come first. Equally long ones come from the added sequences, newest
        first, then from `text`, then from the fixed texts, and in each the last occurrence comes first. A continuation comes
        once. contexts: lengths of a match, longest first. per_agreed: at most this many tokens per token of the match.
        """
        return (rest for _, rest in self.matched(text, length, contexts, per_agreed))

    def matched(
        self, text: Sequence[int], length: int, contexts: range = CONTEXTS, per_agreed: int | None = None
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """What `following` finds, with the number of tokens that match before it."""
        spelled = self._text(text)
        sources = [(_agreed(spelled, each, contexts), each) for each in (*self._latest, spelled, *self._texts)]
        seen = {""}
        for agreement in contexts:
            most = length if per_agreed is None else min(length, per_agreed * agreement)
            for source in (source for agreed, source in sources if agreed >= agreement):
                for end in _ends(source, spelled[-agreement:]):
                    if (rest := source[end : end + most]) not in seen:
                        seen.add(rest)
                        yield agreement, tuple(map(ord, rest))

    def _text(self, text: Sequence[int]) -> str:
        """The text as characters: of one that goes on with the last one, only what is new is spelled."""
        known = len(self._known)
        goes_on = known and text[:known] == self._known
        self._spelling = (self._spelling if goes_on else "") + _spelled(text[known:] if goes_on else text)
        self._known = list(text)
        return self._spelling


def different(
    guesses: Iterable[tuple[int, ...]], most: int, known: Sequence[tuple[int, ...]] = ()
) -> list[tuple[int, ...]]:
    """The first `most` guesses that are no prefix of a sequence in `known` or of a guess before them."""
    found: list[tuple[int, ...]] = []
    for guess in guesses:
        if len(found) >= most:
            break
        if not any(other[: len(guess)] == guess for other in (*known, *found)):
            found.append(guess)
    return found


def _spelled(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


@lru_cache(maxsize=256)
def _spelled_once(tokens: tuple[int, ...]) -> str:
    """What many texts are looked up in, such as the skeletons of all plans."""
    return _spelled(tokens)


def _agreed(text: str, source: str, contexts: range) -> int:
    """The largest of these numbers of last characters of `text` that `source` has in one piece; 0: not even the smallest."""
    agreed = 0
    for length in reversed(contexts):
        if length > len(text) or text[-length:] not in source:
            break
        agreed = length
    return agreed


def _ends(text: str, part: str) -> Iterator[int]:
    """Indices after each occurrence of `part`, the last one first."""
    at = text.rfind(part)
    while at >= 0:
        yield at + len(part)
        at = text.rfind(part, 0, at + len(part) - 1)
