"""Explains why a Jacobi decoding was fast: the fast-forwarded and stationary tokens of CLLM's Table 3 (arXiv 2403.00835).

They are computed from the rounds of one sequence. The guess is the draft's first branch, which is a Jacobi method's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from decoding.engine.draft import ROOT
from decoding.engine.records.rounds import Round
from decoding.methods.jacobi.window import following


@dataclass(frozen=True, slots=True)
class JacobiCounts:
    """Counts of one sequence, or summed over several."""

    forwards: int = 0
    fast_forwarded: int = 0  # tokens that a forward committed beyond its first
    stationary: int = 0  # tokens guessed correctly while one before them was wrong, and kept from then on

    def __add__(self, other: "JacobiCounts") -> "JacobiCounts":
        return JacobiCounts(
            self.forwards + other.forwards,
            self.fast_forwarded + other.fast_forwarded,
            self.stationary + other.stationary,
        )


def count(rounds: Iterable[Round]) -> JacobiCounts:
    """The counts of one sequence from its rounds, in order. Forced tokens do not count as fast-forwarded.

    CLLM's script averages the correct tokens gained per forward, which is 1 + fast_forwarded / forwards.
    """
    rounds = list(rounds)
    text = [token for one in rounds for token in one.text_tokens]
    stationary = start = 0
    kept: set[int] = set()  # positions that the previous round guessed correctly after a wrong guess
    for one in rounds:
        end = start + len(one.text_tokens)
        right = {at for at, token in _own_guess(one, start) if text[at : at + 1] == [token]}
        stationary += sum(at < end for at in kept & right)
        kept = {at for at in right if at >= end}
        start = end
    return JacobiCounts(len(rounds), sum(len(one.committed) - 1 for one in rounds), stationary)


def _own_guess(one: Round, start: int) -> Iterable[tuple[int, int]]:
    """(position, token) down the first branch of the round's draft."""
    return enumerate((one.draft_tokens[node] for node in following(one.draft_parents, ROOT)), start)
