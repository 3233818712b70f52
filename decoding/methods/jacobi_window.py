"""The guesses that methods of the Jacobi family have in flight, and the rules of a sweep, which training shares.

Blocks are aligned to generated positions: block j holds the generated tokens [j * n, (j + 1) * n). A block is never restarted:
it shrinks from the left while its tokens are accepted (Consistency LLMs, arXiv 2403.00835; Jacobi Forcing, arXiv 2512.14681).
Plain data, no tensors.

`SweptWindow` is the papers': the target's answers to a wrong guess are the next guess. `MaskedWindow` is for a target with mask
tokens of its own, which was not trained to correct what it reads after a wrong guess. There the guesses are what it predicted
at masks, given the token before each, and what is not known yet is masks again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import takewhile

from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context
from decoding.engine.target import ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.mask_guesses import Guesses, LookaheadPredictions
from decoding.methods.trees import admitted


def block_range(generated: int, n: int) -> range:
    """Generated positions of the block of `n` that holds position `generated` (0 is the first generated token)."""
    start = generated - generated % n
    return range(start, start + n)


def next_state(state: Sequence[int], choices: Sequence[int]) -> list[int]:
    """One Jacobi sweep: every position takes the target's own choice for it.

    `state` and `choices` begin at the same position; `choices[i]` is the target's token given the old guesses before it.
    A position that was not scored keeps its guess. `choices` may reach past the state (the answer to the last guess).
    """
    return [*choices, *state[len(choices) :]]


def answers(draft: Draft, scores: ForwardOutput, verdict: Verdict, guess: Sequence[int]) -> list[int]:
    """The target's choices for the positions after the bonus: its answers to the rejected nodes.

    Those below the accepted path come first; where that branch ends, those of the method's own guess go on. With other
    guesses in one tree, the own one is followed where the accepted path lies on it.
    """
    path, own = verdict.path, draft.below(ROOT, guess)
    on_own = path == tuple(own[: len(path)])
    last = own[-1] if own and on_own else path[-1] if path else ROOT
    below = [*(own[len(path) :] if on_own else ()), *following(draft.parents, last)]
    return [scores.choice(node) for node in (*below, *own[len(path) + len(below) :])]


def following(parents: Sequence[int], node: int) -> list[int]:
    """The nodes of a draft below `node`, first child after first child. On a chain: all of them."""
    first_child: dict[int, int] = {}
    for child, parent in enumerate(parents):
        first_child.setdefault(parent, child)
    out: list[int] = []
    while node in first_child:
        node = first_child[node]
        out.append(node)
    return out


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
    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> list[int]:
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

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> list[int]:
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
        self.masks = context.masks(prompt)
        self._foreseen, self._cursor = LookaheadPredictions(prompt, context, most, TOP_K), context.cursor
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

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> list[int]:
        self._foreseen.observe(draft, scores, verdict, self._length + len(verdict.path) + 1)
        return []
