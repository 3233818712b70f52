"""The guesses that Jacobi Forcing's decoder has in flight, kept in one of two ways.

`SweptWindow` is the papers': the target's answers to a wrong guess are the next guess. `MaskedWindow` is for a target with
mask tokens of its own, which was not trained to correct what it reads after a wrong guess: there the guesses come from what it
said at masks, given the token before each, and what is not known yet is masks again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import takewhile

from decoding.engine.draft import Draft
from decoding.engine.method import Context
from decoding.engine.target import Scores
from decoding.engine.verify import Verdict
from decoding.methods.drafting.trees import admitted
from decoding.methods.jacobi.first_guess import Guesses, masks_of
from decoding.methods.jacobi.foreseen import ForeseenGuesses
from decoding.methods.jacobi.window import answers, next_state

TOP_K = 8
"""Guesses of a position of which the first that the constraint allows is taken."""


class GuessWindow(ABC):
    """The guesses after a text. masks: tokens that stand for what is not known yet, and are not asked about by themselves."""

    masks: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.guesses: list[int] = []

    @abstractmethod
    def stand(self, tokens: Sequence[int]) -> None:
        """The next draft follows `tokens`."""

    @abstractmethod
    def settled(self) -> int:
        """How many of the guesses need no other sweep."""

    @abstractmethod
    def first(self, count: int) -> list[int]:
        """Guesses for `count` positions of which nothing is known."""

    @abstractmethod
    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> list[int]:
        """See how the draft fared; returns what was answered after the bonus token."""

    def fill(self, width: int, following: Callable[[Sequence[int], int], Sequence[int]]) -> None:
        """Make it `width` guesses. following: what is known to follow some guesses, at most so many tokens."""
        self.guesses = self.guesses[:width]
        if missing := width - len(self.guesses):
            known = following(self.guesses, missing)
            self.guesses += [*known, *self.first(missing - len(known))]


class SweptWindow(GuessWindow):
    """Every position takes the target's own choice for it. newest: how many positions the newest block has."""

    def __init__(self, draws: Guesses, prompt: Sequence[int], newest: int) -> None:
        super().__init__()
        self._draws, self._newest = draws, newest
        self._start = len(prompt)  # position of the first guess
        self._unchanged = 0  # position up to which the last sweep left the newest block unchanged

    def stand(self, tokens: Sequence[int]) -> None:
        self.guesses = self._draws.answered(self.guesses[len(tokens) - self._start :])
        self._start = len(tokens)

    def settled(self) -> int:
        return max(self._unchanged - self._start, 0)

    def first(self, count: int) -> list[int]:
        return self._draws.take(count)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> list[int]:
        sweep, passed = answers(draft, scores, verdict, self.guesses), len(verdict.path) + 1
        newest = max(len(self.guesses) - self._newest, passed)  # index of the first guess of the newest block
        old = self.guesses[passed:]
        agreed = takewhile(
            lambda pair: pair[0] == pair[1], zip(self.guesses[newest:], sweep[newest - passed :], strict=False)
        )
        self._unchanged = self._start + newest + sum(1 for _ in agreed)
        self.guesses, self._start = next_state(old, sweep), self._start + passed
        return sweep


class MaskedWindow(GuessWindow):
    """At most `most` guesses: at each position the likeliest token that the constraint allows."""

    def __init__(self, prompt: Sequence[int], context: Context, most: int) -> None:
        super().__init__()
        self.masks = masks_of(prompt, context.mask_tokens)
        self._foreseen, self._cursor = ForeseenGuesses(prompt, context, most, TOP_K), context.cursor
        self._length = len(prompt)

    def stand(self, tokens: Sequence[int]) -> None:
        self._length, cursor = len(tokens), self._cursor()
        self._foreseen.stand(tokens)
        self.guesses = []
        while level := self._foreseen.level(tuple(self.guesses)):
            if (best := next(admitted(level, cursor), None)) is None:
                return
            self.guesses.append(best[0])
            cursor = cursor and cursor.after(best[0])

    def settled(self) -> int:
        return len(self.guesses)

    def first(self, count: int) -> list[int]:
        return list(self._foreseen.chain[: -(-count // self._foreseen.stride)])

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> list[int]:
        self._foreseen.observe(draft, scores, verdict, self._length + len(verdict.path) + 1)
        return []
