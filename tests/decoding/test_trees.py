"""Tree builders are pure functions: what they promise holds for any guesses."""

from itertools import product
from math import inf

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding.draft import ROOT, Draft
from decoding.trees import Frontier, Level, beam, best_first, budgeted, fanned_out, static


@st.composite
def levels(draw: st.DrawFn) -> list[Level]:
    """1 to 4 depths of 1 to 4 guesses; scores are sums of sixteenths, so that they add exactly, and ties happen."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    scores = st.integers(-40, 0).map(lambda value: value / 16)
    return [
        Level(
            [10 * depth + rank for rank in range(size)],
            sorted(draw(st.lists(scores, min_size=size, max_size=size)))[::-1],
        )
        for depth, size in enumerate(sizes)
    ]


def score(draft: Draft, node: int, guesses: list[Level]) -> float:
    """Sum of the log-probabilities down to a node."""
    path = [draft.tokens[each] for each in draft.path(node)]
    return sum(level.scores[list(level.tokens).index(token)] for level, token in zip(guesses, path, strict=False))


def all_scores(guesses: list[Level]) -> list[float]:
    """Of every prefix, best first."""
    prefixes = (
        each for depth in range(1, len(guesses) + 1) for each in product(*(level.scores for level in guesses[:depth]))
    )
    return sorted(map(sum, prefixes), reverse=True)


@given(levels(), st.integers(1, 40))
def test_best_first_is_the_most_probable_tree_of_its_size(guesses: list[Level], budget: int) -> None:
    """Guards against a heap that forgets siblings or first children."""
    draft = best_first(guesses, budget)
    found = [score(draft, node, guesses) for node in range(len(draft))]
    assert found == all_scores(guesses)[:budget]


@given(levels(), st.integers(1, 4), st.integers(1, 40))
def test_a_fanned_out_tree_gives_the_best_node_all_its_children(guesses: list[Level], width: int, budget: int) -> None:
    draft = fanned_out(guesses, width, budget)
    assert len(draft) <= budget
    expanded = sorted(set(draft.parents), key=draft.parents.index)
    for parent in expanded[:-1]:
        depth = draft.depth(parent)
        assert draft.parents.count(parent) == min(width, len(guesses[depth].tokens)), "only the budget cuts a family"
    waiting = [0.0 if parent == ROOT else score(draft, parent, guesses) for parent in expanded]
    assert waiting == sorted(waiting, reverse=True), "the better node is expanded first"


def unconditioned(guesses: list[Level], calls: list[Frontier]) -> object:
    def expand(frontier: Frontier) -> tuple[Tensor, Tensor]:
        calls.append(frontier)
        level, count = guesses[frontier.depth], len(frontier.tokens) or 1
        return torch.tensor([level.tokens] * count), torch.tensor([level.scores] * count, dtype=torch.float64)

    return expand


@settings(deadline=None)
@given(levels(), st.integers(1, 40))
def test_a_beam_that_is_wide_enough_finds_the_most_probable_tree(guesses: list[Level], budget: int) -> None:
    """Guards against levels that are left out although they could enter the tree."""
    draft = beam(unconditioned(guesses, []), 300, len(guesses), budget)  # type: ignore[arg-type]
    found = sorted((score(draft, node, guesses) for node in range(len(draft))), reverse=True)
    assert found == all_scores(guesses)[:budget]


@settings(deadline=None)
@given(levels(), st.integers(1, 3), st.integers(1, 12))
def test_a_beam_tells_each_node_its_parents_place(guesses: list[Level], width: int, budget: int) -> None:
    """Guards against state that is carried on from the wrong branch. Here every node has a token of its own."""
    made: dict[int, tuple[int, int]] = {}  # token -> (its parent's place in the frontier, the parent's token)

    def expand(frontier: Frontier) -> tuple[Tensor, Tensor]:
        assert len(frontier.rows) <= width
        for token, row in zip(frontier.tokens, frontier.rows, strict=False):
            assert made[token][0] == row
        level, rows = guesses[frontier.depth], []
        for place, parent in enumerate(frontier.tokens or (ROOT,)):
            rows.append(range(len(made), len(made) + len(level.tokens)))
            made.update(dict.fromkeys(rows[-1], (place, parent)))
        return torch.tensor([list(row) for row in rows]), torch.tensor([level.scores] * len(rows))

    draft = beam(expand, width, len(guesses), budget)
    assert 0 < len(draft) <= budget
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        assert made[token][1] == (ROOT if parent == ROOT else draft.tokens[parent])


def test_a_beam_stops_where_nothing_more_can_enter() -> None:
    calls: list[Frontier] = []
    guesses = [Level([0, 1], [0.0, -1.0])] + [Level([2, 3], [-5.0, -6.0])] * 3
    assert len(beam(unconditioned(guesses, calls), 2, 4, 2)) == 2  # type: ignore[arg-type]
    assert len(calls) == 2


def test_a_head_that_overflows_still_gives_a_tree() -> None:
    guesses = [Level([0, 1], [-inf, -inf])] * 3
    assert len(best_first(guesses, 5)) == 5
    assert len(fanned_out(guesses, 2, 5)) == 5
    assert len(beam(unconditioned(guesses, []), 2, 3, 5)) <= 5  # type: ignore[arg-type]


def test_a_static_tree_has_its_shape_whatever_the_guesses() -> None:
    guesses = [Level([7, 8], [-0.1, -3.0]), Level([9], [-0.5])]
    assert static([(0,), (0, 0), (1, 0), (0, 1)], guesses) == Draft.trie([(7, 9), (8, 9)])


def test_the_best_nodes_keep_their_order() -> None:
    draft = budgeted([1, 2, 3, 4], [ROOT, ROOT, 1, 0], [-2.0, -1.0, -1.0, -2.5], 3)
    assert (draft.tokens, draft.parents) == ((1, 2, 3), (ROOT, ROOT, 1))
