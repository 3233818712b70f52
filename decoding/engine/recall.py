"""Token sequences that a conversation owns and that outlive one generation: earlier texts, identifiers, join paths."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Recall:
    """Recently used token sequences, newest first, bounded by their total length. Written by the conversation only."""

    def __init__(self, max_tokens: int = 8192) -> None:
        self._max_tokens = max_tokens
        self._sequences: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def add(self, tokens: Iterable[int]) -> None:
        """Remember a sequence as the newest; the oldest are forgotten when the total grows past `max_tokens`."""
        sequence = tuple(tokens)
        if not sequence:
            return
        self._sequences.pop(sequence, None)
        self._sequences[sequence] = None
        while sum(map(len, self._sequences)) > self._max_tokens and len(self._sequences) > 1:
            self._sequences.popitem(last=False)

    def copy(self) -> "Recall":
        """A copy that later additions do not change."""
        other = Recall(self._max_tokens)
        other._sequences = self._sequences.copy()
        return other

    def beside(self, older: Iterable[Sequence[int]], newer: Iterable[Sequence[int]]) -> "Recall":
        """A copy with sequences added that the conversation has not written, as its oldest and as its newest.

        Each argument ends with its newest sequence. The bound grows by what is added, so nothing is forgotten for it.
        """
        older, newer = list(older), list(newer)
        other = Recall(self._max_tokens + sum(map(len, older)) + sum(map(len, newer)))
        for sequence in (*older, *self._sequences, *newer):
            other.add(sequence)
        return other

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """All remembered sequences, newest first."""
        return tuple(reversed(self._sequences))
