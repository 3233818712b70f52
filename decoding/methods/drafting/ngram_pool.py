"""What followed the last tokens elsewhere: candidates for verification, from texts and from rejected guesses.

The rejection recycling of Jacobi Forcing (arXiv 2512.14681): a guess that was right but misplaced is found again when the
text reaches its first token.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

CONTEXTS = range(8, 0, -1)  # last tokens that are compared, by default; longer agreement ranks no higher


class NgramPool:
    """Fixed `texts`, in order of preference, and before them the `size` latest sequences that were added.

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
        """Up to `length` tokens after every place where the last token of `text` stands, here or in `text` itself.

        The places whose context agrees longest with the end of `text` come first; among equals the added sequences,
        newest first, then `text`, then the fixed texts, and in each the last place first. Some come more than once.
        contexts: how many last tokens are to agree, from most to least. per_agreed: a bound to the length, times these.
        """
        spelled = _spelled(text)
        for agreement in contexts:
            most = length if per_agreed is None else min(length, per_agreed * agreement)
            for source in (*self._latest, spelled, *self._texts) if agreement <= len(spelled) else ():
                for end in _ends(source, spelled[-agreement:]):
                    if rest := source[end : end + most]:
                        yield tuple(map(ord, rest))


def different(
    guesses: Iterable[tuple[int, ...]], most: int, known: Sequence[tuple[int, ...]] = ()
) -> list[tuple[int, ...]]:
    """The first `most` guesses that none of `known`, and none before them, begins with."""
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
