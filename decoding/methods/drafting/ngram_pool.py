"""Finds what followed the last tokens elsewhere, in texts and in rejected guesses, as candidates for verification.

The rejection recycling of Jacobi Forcing (arXiv 2512.14681): a guess that was right but misplaced is found again when the
text reaches its first token.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

CONTEXTS = range(8, 0, -1)  # how many last tokens are compared, by default; a longer match ranks no higher


class NgramPool:
    """The `size` sequences that were added last, and fixed `texts` in order of preference.

    Token ids are kept as characters and searched for with `str.rfind`: an index of every recalled text would cost each
    generation more than its few dozen searches do.
    """

    def __init__(self, size: int, texts: Iterable[Sequence[int]] = ()) -> None:
        self._latest: deque[str] = deque(maxlen=size)
        self._texts = [_spelled(text) for text in texts]

    def add(self, sequence: Sequence[int]) -> None:
        self._latest.appendleft(_spelled(sequence))

    def following(
        self, text: Sequence[int], length: int, contexts: range = CONTEXTS, per_agreed: int | None = None
    ) -> Iterator[tuple[int, ...]]:
        """Up to `length` tokens after every occurrence of the last token of `text`, in the pool or in `text` itself.

        The longest matches with the end of `text` come first. Equally long ones come from the added sequences, newest
        first, then from `text`, then from the fixed texts, and in each the last occurrence comes first. Some continuations
        come more than once. contexts: lengths of a match, longest first. per_agreed: at most this many tokens per token of
        the match.
        """
        return (rest for _, rest in self.matched(text, length, contexts, per_agreed))

    def matched(
        self, text: Sequence[int], length: int, contexts: range = CONTEXTS, per_agreed: int | None = None
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """What `following` finds, with the number of tokens that match before it."""
        spelled = _spelled(text)
        for agreement in contexts:
            most = length if per_agreed is None else min(length, per_agreed * agreement)
            for source in (*self._latest, spelled, *self._texts) if agreement <= len(spelled) else ():
                for end in _ends(source, spelled[-agreement:]):
                    if rest := source[end : end + most]:
                        yield agreement, tuple(map(ord, rest))


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


def _ends(text: str, part: str) -> Iterator[int]:
    """Indices after each occurrence of `part`, the last one first."""
    at = text.rfind(part)
    while at >= 0:
        yield at + len(part)
        at = text.rfind(part, 0, at + len(part) - 1)
