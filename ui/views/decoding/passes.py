"""A step's rounds as a table for people: columns are the text's positions, rows the model's passes over guesses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from decoding.engine.draft import ROOT
from decoding.engine.records.rounds import Round


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that was guessed for a position. `kept`: the model agreed with it, and with every guess before it."""

    position: int
    token: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward. `guesses`: those that were kept, then the first branch that was not; `others`: further guesses, in other
    branches. `own`: the position of the model's own token, or of the guess that ended the text. `forced`: the positions
    that the grammar filled after it.
    """

    number: int  # from 1
    start: int
    guesses: tuple[Guess, ...]
    others: int
    own: int
    forced: range


def passes(rounds: Iterable[Round]) -> list[Pass]:
    """The passes of one sequence; positions count its text's tokens from 0."""
    made: list[Pass] = []
    start = 0
    for number, r in enumerate(rounds, 1):
        own = start + len(r.committed) - 1
        guesses = _guesses(r, start)
        others = len(r.draft_tokens) - len(guesses)
        forced = range(own + 1, own + 1 + len(r.forced))
        made.append(Pass(number, start, guesses, others, own, forced))
        start = forced.stop
    return made


def _guesses(r: Round, start: int) -> tuple[Guess, ...]:
    kept = r.accepted[: len(r.committed) - 1]
    nodes = [*kept, *_first_branch(r, kept)]
    right = [i < len(kept) for i in range(len(nodes))]
    if len(nodes) > len(kept) and r.draft_tokens[nodes[len(kept)]] == r.committed[-1]:
        right[len(kept)] = True  # the text ended here, with what was guessed
    return tuple(Guess(start + i, r.draft_tokens[node], right[i]) for i, node in enumerate(nodes))


def _first_branch(r: Round, kept: Sequence[int]) -> list[int]:
    """The nodes that follow the kept ones, each the first child of the one before."""
    first_child: dict[int, int] = {}
    for node, parent in enumerate(r.draft_parents):
        first_child.setdefault(parent, node)
    branch: list[int] = []
    node = kept[-1] if kept else ROOT
    while node in first_child:
        node = first_child[node]
        branch.append(node)
    return branch


def history(all_passes: Iterable[Pass]) -> dict[int, list[tuple[int, Guess]]]:
    """By position, every guess for it with the number of its pass, in order."""
    found: dict[int, list[tuple[int, Guess]]] = {}
    for each in all_passes:
        for guess in each.guesses:
            found.setdefault(guess.position, []).append((each.number, guess))
    return found
