"""Finds what followed the last tokens elsewhere, in texts and in rejected guesses, as candidates for verification.

The pool of rejected guesses is the rejection recycling of Jacobi Forcing (arXiv 2512.14681): a guess that was right but
misplaced is found again when the text reaches its first token. Copies come from the text, the prompt and the conversation's
earlier texts, as in prompt lookup; their probability, by the length of the match, is counted while decoding.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from decoding.checkpoints.mask_adapter import DEFAULT_PRIORS, DraftPriors
from decoding.engine.constraint import ConstraintCursor
from decoding.engine.experience import AcceptanceStats

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


class CopiedGuesses:
    """Up to `most` copies that differ, of at most `length` tokens each, from one text and from `texts`. begins: the number of
    tokens before the answer.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        most: int,
        length: int,
        experience: AcceptanceStats,
        begins: int = 0,
        priors: DraftPriors = DEFAULT_PRIORS,
    ) -> None:
        self._pool, self._most, self._length = NgramPool(0, texts), most, length
        self._begins, self._at_beginning = begins, False
        self._right = experience.means("copies right", priors.copies + priors.first_copies)
        self._second = experience.means("second copies right", priors.second_copies)
        self._cases = len(priors.copies), len(priors.first_copies)
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
        cases, first_cases = self._cases
        if self._at_beginning:
            return cases + 2 * (min(agreed, first_cases // 2) - 1) + (depth > 0)
        return min(agreed + depth, cases - 1)

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
