"""Tree builders are pure functions whose guarantees hold for any guesses.

The pool of n-grams: which continuations it offers, and in which order.
"""

from collections.abc import Sequence
from itertools import product
from math import exp, inf, log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.methods.ngram_pool import NgramPool
from decoding.methods.trees import (
    Bounds,
    Frontier,
    Level,
    admitted,
    beam,
    best_first,
    budgeted,
    chain,
    fanned_out,
)
from tests.decoding.models.doubles import NoAscent


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
    draft = best_first(guesses, Bounds(budget))
    found = [score(draft, node, guesses) for node in range(len(draft))]
    assert found == all_scores(guesses)[:budget]


@given(levels(), st.integers(1, 4), st.integers(1, 40))
def test_a_fanned_out_tree_gives_the_best_node_all_its_children(guesses: list[Level], width: int, budget: int) -> None:
    draft = fanned_out(guesses, width, Bounds(budget))
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
    draft = wide(guesses, Bounds(budget))
    found = sorted((score(draft, node, guesses) for node in range(len(draft))), reverse=True)
    assert found == all_scores(guesses)[:budget]


@settings(deadline=None)
@given(levels(), st.integers(1, 3), st.integers(1, 12))
def test_a_beam_tells_each_node_its_parents_place(guesses: list[Level], width: int, budget: int) -> None:
    """Guards against state that is carried on from the wrong branch. Here every node has a token of its own."""
    made: dict[int, tuple[int, int]] = {}  # token -> (its parent's index in the frontier, the parent's token)

    def expand(frontier: Frontier) -> tuple[Tensor, Tensor]:
        assert len(frontier.rows) <= width
        for token, row in zip(frontier.tokens, frontier.rows, strict=False):
            assert made[token][0] == row
        level, rows = guesses[frontier.depth], []
        for index, parent in enumerate(frontier.tokens or (ROOT,)):
            rows.append(range(len(made), len(made) + len(level.tokens)))
            made.update(dict.fromkeys(rows[-1], (index, parent)))
        return torch.tensor([list(row) for row in rows]), torch.tensor([level.scores] * len(rows))

    draft = beam(expand, width, len(guesses), Bounds(budget))
    assert 0 < len(draft) <= budget
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        assert made[token][1] == (ROOT if parent == ROOT else draft.tokens[parent])


def test_a_beam_stops_where_nothing_more_can_enter() -> None:
    calls: list[Frontier] = []
    guesses = [Level([0, 1], [0.0, -1.0])] + [Level([2, 3], [-5.0, -6.0])] * 3
    assert len(beam(unconditioned(guesses, calls), 2, 4, Bounds(2))) == 2  # type: ignore[arg-type]
    assert len(calls) == 2


def test_a_head_that_overflows_still_gives_a_tree() -> None:
    guesses = [Level([0, 1], [-inf, -inf])] * 3
    assert len(best_first(guesses, Bounds(5))) == 5
    assert len(fanned_out(guesses, 2, Bounds(5))) == 5
    assert len(beam(unconditioned(guesses, []), 2, 3, Bounds(5))) <= 5  # type: ignore[arg-type]


def test_the_best_nodes_keep_their_order() -> None:
    draft = budgeted([1, 2, 3, 4], [ROOT, ROOT, 1, 0], [-2.0, -1.0, -1.0, -2.5], 3)
    assert (draft.tokens, draft.parents) == ((1, 2, 3), (ROOT, ROOT, 1))


RANKED = Level(tuple(range(12)), [-0.25 * token for token in range(12)])
STANDING = ConstraintCursor.start(NoAscent(), frozenset({NoAscent.STOP}))


def grown() -> dict[str, Draft]:
    """Trees over the toy grammar: at most 4 above the last token, 2 and 3 after 9, nothing after 11; 9 is what all want."""
    wanted = (9, 8, 11, 10, 7, 6, 5, 4, 3, 2, 1, 0)
    levels = [Level(wanted, [-0.5 * rank for rank in range(12)])] * 6
    return {
        "chain": chain(levels, STANDING),
        "best_first": best_first(levels, Bounds(20), STANDING),
        "fanned_out": fanned_out(levels, 3, Bounds(20), STANDING),
        "beam": beam(unconditioned(levels, []), 4, 6, Bounds(20), 3, STANDING),  # type: ignore[arg-type]
    }


def test_trees_grow_among_what_a_constraint_allows() -> None:
    """Guards against nodes that the engine would throw away, and against guesses below a stop token or next to a forced one."""
    for name, draft in grown().items():
        assert len(draft) == (4 if name == "chain" else 20), name
        for leaf in range(len(draft)):
            cursor = STANDING
            for node in draft.path(leaf):
                assert cursor.admits(draft.tokens[node]), name
                cursor = cursor.after(draft.tokens[node])
        assert not any(draft.tokens[parent] == NoAscent.STOP for parent in draft.parents if parent != ROOT), name
        below_nine = {
            draft.tokens[node] for node, parent in enumerate(draft.parents) if parent >= 0 and draft.tokens[parent] == 9
        }
        assert below_nine == {2}, name
    assert grown()["chain"].tokens == (9, 2, 3, 11), "nothing follows a stop token"


def test_what_is_forbidden_leaves_its_probability_to_the_others() -> None:
    level = Level((10, 4, 11, 3), [-0.5, -1.5, -2.0, -4.0])
    found = dict(admitted(level, STANDING))
    assert list(found) == [4, 11, 3]
    assert found[4] == pytest.approx(-1.5 - log(1 - exp(-0.5)))
    assert dict(admitted(Level((10, 4), [log(0.6), log(0.35)]), STANDING))[4] == pytest.approx(log(0.35 / 0.4))
    assert list(admitted(Level((10,), [0.0]), STANDING)) == []
    assert list(admitted(Level((3, 4), [-1.0, -2.0]), STANDING.after(9))) == [(2, 0.0)], "a forced token is certain"


@settings(deadline=None)
@given(levels(), st.integers(1, 40), st.sampled_from([0.01, 0.1, 0.5]))
def test_no_path_is_less_probable_than_its_bound(guesses: list[Level], budget: int, least: float) -> None:
    """Guards against rows that cost more than they can bring; what is probable enough stays, as far as the budget goes."""
    bounds, most = Bounds(budget, least), Bounds(budget)
    for found, unbound in (
        (best_first(guesses, bounds), best_first(guesses, most)),
        (wide(guesses, bounds), wide(guesses, most)),
    ):
        kept = [score(unbound, node, guesses) for node in range(len(unbound))]
        assert sorted(score(found, node, guesses) for node in range(len(found))) == sorted(
            each for each in kept if each >= log(least)
        )
    fan = fanned_out(guesses, 3, bounds)
    assert all(score(fan, node, guesses) >= log(least) for node in range(len(fan)))


def wide(guesses: list[Level], bounds: Bounds) -> Draft:
    return beam(unconditioned(guesses, []), 300, len(guesses), bounds)  # type: ignore[arg-type]


def test_a_constraint_is_asked_no_more_than_is_read() -> None:
    asked: list[int] = []

    class Curious(NoAscent):
        def admits(self, state: int, token: int) -> bool:
            asked.append(token)
            return super().admits(state, token)

    cursor = ConstraintCursor.start(Curious(), frozenset())
    assert [next(admitted(RANKED, cursor)) for _ in range(3)] == [(0, 0.0)] * 3
    assert asked == [0], "and never twice"


def test_the_pool_prefers_long_agreement_then_what_is_new() -> None:
    pool = NgramPool(2, texts=[(1, 2, 3, 4), (9, 2, 3, 5)])

    def asked(text: Sequence[int]) -> list[tuple[int, ...]]:
        return list(dict.fromkeys(pool.following(text, 2)))

    assert asked([1, 2, 3]) == [(4,), (5,)]
    for sequence in ([3, 6, 6], [3, 7], [8, 3, 8, 3, 9, 70_000]):
        pool.add(sequence)
    assert asked([1, 2, 3]) == [(4,), (5,), (9, 70_000), (8, 3), (7,)], "the oldest of three was dropped"
    assert asked([3, 1, 2, 3]) == [(4,), (5,), (9, 70_000), (8, 3), (7,), (1, 2)], "the text's own n-grams, too"
    assert asked([1, 9]) == [(70_000,), (2, 3)]
    assert asked([10]) == []
