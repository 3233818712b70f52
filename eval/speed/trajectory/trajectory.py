"""Describes a decoding, iteration by iteration, as tokens at positions, for figures. Needs no model and draws nothing.

An iteration is a round. Its first lane is the method's own guess (the draft's first branch); each further lane is another
branch of the draft, from where it leaves the lanes before it, with candidates from the n-gram pool, the prompt or the recall.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from decoding.engine.draft import ROOT
from decoding.engine.records.metrics import Metrics, measure
from decoding.engine.records.rounds import Round
from decoding.methods.jacobi.window import following
from decoding.tokenizer.tokenizer import Tokenizer
from eval.speed.agent_calls import Call
from eval.speed.trajectory.jacobi_counts import JacobiCounts, count

Kind = Literal["accepted", "bonus", "forced", "stationary", "misplaced", "wrong", "past"]

MEANING: Mapping[Kind, str] = {
    "accepted": "guessed and accepted: fast-forwarded",
    "bonus": "the model's own next token",
    "forced": "the grammar's only way on",
    "stationary": "right in its place while something before it is wrong",
    "misplaced": "part of an n-gram that the text has elsewhere",
    "wrong": "neither",
    "past": "beyond the end of the text",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A token at a position of the generated text."""

    text: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Lane:
    """Cells in a row, the first at generated position `start`."""

    start: int
    cells: tuple[Cell, ...]
    own: bool  # the method's own guess, not a candidate

    @property
    def stop(self) -> int:
        return self.start + len(self.cells)


@dataclass(frozen=True, slots=True)
class StepTrajectory:
    """One decoded text. `iterations[i]`: lanes, the own guess first."""

    name: str
    decoder: str
    text: str
    iterations: tuple[tuple[Lane, ...], ...]
    metrics: Metrics
    counts: JacobiCounts
    recycled: int  # accepted tokens that came from a candidate, not from the method's own guess


def of_calls(calls: Iterable[Call], tokenizer: Tokenizer) -> list[StepTrajectory]:
    """The trajectories of the agent's texts, in order."""
    spelled = speller(tokenizer)
    return [
        trajectory(call.step, call.settings.decoder, call.generation.text.strip(), call.generation.rounds, spelled)
        for call in calls
    ]


def trajectory(
    name: str, decoder: str, text: str, rounds: Sequence[Round], spelled: Callable[[int], str]
) -> StepTrajectory:
    """The trajectory of one sequence from its `rounds`. `spelled`: the text shown for a token."""
    tokens = [token for one in rounds for token in one.text_tokens]
    iterations, start = [], 0
    for one in rounds:
        iterations.append(tuple(_lanes(one, start, tokens, spelled)))
        start += len(one.text_tokens)
    recycled = sum(len(set(one.accepted) - set(following(one.draft_parents, ROOT))) for one in rounds)
    return StepTrajectory(name, decoder, text, tuple(iterations), measure(rounds), count(rounds), recycled)


def speller(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function that spells tokens for a figure: blanks and line ends become visible, special tokens show their names."""

    def spelled(token: int) -> str:
        text = tokenizer.decode([token], special=True)
        return text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")

    return spelled


def _lanes(one: Round, start: int, tokens: Sequence[int], spelled: Callable[[int], str]) -> Iterable[Lane]:
    """The lanes of a round whose first guess is at position `start`; its committed tokens are in the lane that won."""
    pairs = set(pairwise(tokens[start:]))
    branches = list(_branches(one))
    winner = next((i for i, (_, nodes) in enumerate(branches) if one.accepted and one.accepted[-1] in nodes), 0)
    for index, (depth, nodes) in enumerate(branches or [(0, [])]):
        guess = [one.draft_tokens[node] for node in nodes]
        kinds = _kinds(guess, start + depth, tokens, pairs)
        kinds = ["accepted" if node in one.accepted else kind for node, kind in zip(nodes, kinds, strict=True)]
        cells = [Cell(spelled(token), kind) for token, kind in zip(guess, kinds, strict=True)]
        if index == winner:
            added = [Cell(spelled(one.committed[-1]), "bonus"), *(Cell(spelled(t), "forced") for t in one.forced)]
            at = len(one.committed) - 1 - depth
            cells[at : at + len(added)] = added
        yield Lane(start + depth, tuple(cells), own=index == 0)


def _branches(one: Round) -> Iterable[tuple[int, list[int]]]:
    """(depth before it, nodes) per branch. A branch follows first children from the root, or from a node that is not one."""
    parents, seen = one.draft_parents, set[int]()
    depths = {ROOT: 0}
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1
        if node not in seen:
            branch = [node, *following(parents, node)]
            seen.update(branch)
            yield depths[parent], branch


def _kinds(guess: Sequence[int], start: int, tokens: Sequence[int], pairs: set[tuple[int, int]]) -> list[Kind]:
    """Classify the guesses, given the whole text. `pairs`: pairs of adjacent tokens in the text not committed yet."""
    found = [pair in pairs for pair in pairwise(guess)]
    near = [left or right for left, right in zip([False, *found], [*found, False], strict=True)] if guess else []
    return [_kind(token, at, tokens, known) for at, (token, known) in enumerate(zip(guess, near, strict=True), start)]


def _kind(token: int, at: int, tokens: Sequence[int], in_a_pair: bool) -> Kind:
    if at >= len(tokens):
        return "past"
    if token == tokens[at]:
        return "stationary"
    return "misplaced" if in_a_pair else "wrong"
