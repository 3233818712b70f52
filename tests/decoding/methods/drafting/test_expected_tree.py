"""Trees of expected worth: which guesses are taken, how many rows, and what several proposers say together."""

from collections.abc import Mapping, Sequence

import pytest

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT
from decoding.engine.experience import RowCosts
from decoding.methods.mask_guesses import pooled
from decoding.methods.planned import LEAST, ExpectedTree, Prices, Reached, expected_tree, planned
from tests.decoding.methods.test_jacobi_forcing import OneOfTwo
from tests.decoding.models.one_of import OneOf

SHARES = {(): {1: 0.6, 2: 0.3}, (1,): {3: 0.5, 4: 0.1}, (1, 3): {5: 0.9}, (2,): {3: 0.9}}


def shares(nodes: Sequence[Reached]) -> list[Mapping[int, float]]:
    return [SHARES.get(node.path, {}) for node in nodes]


@pytest.mark.parametrize(
    ("least", "budget", "room", "tokens", "parents"),
    [
        (0.28, 9, 9, [1, 2, 3], [ROOT, ROOT, 0]),  # 0.6, 0.3 and 0.30, equally probable ones in the order offered
        (0.26, 9, 9, [1, 2, 3, 3, 5], [ROOT, ROOT, 0, 1, 2]),  # and 0.27 twice
        (0.26, 2, 9, [1, 2], [ROOT, ROOT]),
        (0.05, 9, 1, [1, 2], [ROOT, ROOT]),
        (0.7, 9, 9, [], []),
    ],
)
def test_the_tree_holds_the_prefixes_that_are_worth_their_rows(
    least: float, budget: int, room: int, tokens: list[int], parents: list[int]
) -> None:
    tree = expected_tree(shares, [least] * budget, room, None)
    assert (tree.tokens, tree.parents) == (tokens, parents)


def test_what_a_row_must_be_worth_depends_on_how_many_are_better() -> None:
    """Of 0.6, 0.3, 0.3, 0.27 twice and 0.06: a node that stands further behind than its bar allows gets no continuations."""
    asked = list[tuple[int, ...]]()

    def noting(nodes: Sequence[Reached]) -> list[Mapping[int, float]]:
        asked.extend(node.path for node in nodes)
        return shares(nodes)

    tree = expected_tree(noting, [0.05, 0.05, 0.29, 0.29, 0.29], 9, None)
    assert sorted(tree.worths) == [pytest.approx(0.3), pytest.approx(0.3), 0.6]
    assert asked == [(), (1,), (2,), (1, 3)]
    assert len(expected_tree(shares, [0.05, 0.31, 0.31], 9, None)) == 1


def test_only_the_best_of_a_level_are_asked_for_continuations() -> None:
    asked = list[list[tuple[int, ...]]]()

    def noting(nodes: Sequence[Reached]) -> list[Mapping[int, float]]:
        asked.append([node.path for node in nodes])
        return shares(nodes)

    tree = expected_tree(noting, [0.05] * 9, 9, None, width=1)
    assert asked == [[()], [(1,)], [(1, 3)], [(1, 3, 5)]]
    assert tree.tokens == [1, 2, 3, 5, 4], "what is not asked further stays in the tree"


def test_a_guess_pays_for_the_tokens_that_are_forced_after_it() -> None:
    """After 8 the constraint forces two tokens: three rows for one choice of the target. Where 8 is right, the next forward
    would need two of them, too.
    """
    cursor = ConstraintCursor.start(OneOfTwo(forces=True), frozenset()).after(5).after(6).after(7)
    assert not cursor.run

    def eight(nodes: Sequence[Reached]) -> list[Mapping[int, float]]:
        return [{} if node.path else {8: 0.9} for node in nodes]

    trees = [expected_tree(eight, [least] * 9, 9, cursor) for least in (0.7, 0.8)]
    assert (trees[0].tokens, trees[0].worths) == ([8, 9, 10], [pytest.approx(0.9 / (1 + 2 * 0.1))] * 3)
    assert trees[0].gains == [0.0, 0.0, 0.9], "only the last leads to a choice"
    assert not len(trees[1])


def test_what_is_forced_saves_rows_of_the_next_forward() -> None:
    """Rows at 0.4 of a plain step: 9 and 10 would not pay for themselves, but are needed next time otherwise."""
    tree = ExpectedTree([8, 9, 10], [ROOT, 0, 1], [0.9] * 3, [0.75] * 3, [0.0, 0.0, 0.9], [0.0] * 3)
    prices = Prices(RowCosts.even(0.4), 1, 1, 1.0)
    assert prices.row == pytest.approx(0.4)
    plan = planned(tree, (), prices, prices.bars(9), 9)
    assert (plan.rows, plan.gain) == (3, pytest.approx(0.9 + 2 * 0.9 * 0.4))
    unforced = ExpectedTree([8, 9, 10], [ROOT, 0, 1], [0.9, 0.4, 0.3], [0.9, 0.4, 0.3], [0.9, 0.4, 0.3], [0.0] * 3)
    assert planned(unforced, (), prices, prices.bars(9), 9).gain <= 0.9 + 0.4


def test_where_the_text_leaves_the_tree_sums_to_one() -> None:
    ends = expected_tree(shares, [0.05] * 9, 9, None).ends()
    assert sum(ends) == pytest.approx(1.0)
    assert ends[-1] == pytest.approx(0.1) and len(ends) == 7


def test_no_masks_hang_where_the_text_ends() -> None:
    """After 5 and 6 the text ends in two cases of three, and in the others 7 follows."""
    constraint, stop = OneOf([[5, 6], [5, 6, 7], [8]], frozenset([0]), 10), frozenset([0])
    said: dict[tuple[int, ...], dict[int, float]] = {(): {5: 0.9}, (5,): {6: 1.0}, (5, 6): {0: 0.6, 7: 0.3}}
    cursor = ConstraintCursor.start(constraint, stop)
    grown = expected_tree(lambda nodes: [said.get(node.path, {}) for node in nodes], [0.05] * 9, 9, cursor)
    assert grown.tokens == [5, 6, 7], "the target ends the text by itself"
    for tree in (grown, grown.best(9), grown.first(3)):
        assert (tree.stops, tree.root_stops) == ([0.0, pytest.approx(0.54), pytest.approx(0.27)], 0.0)
        assert tree.ends() == [0.0, pytest.approx(0.09), 0.0, pytest.approx(0.1)]
    plan = planned(grown, [0.9], Prices(RowCosts.even(0.1), 1, 1, 1.0), [0.085], 9)
    assert list(plan.masks) == [0, 0, 0, 1]


def test_masks_hang_where_the_text_leaves_the_tree() -> None:
    tree = expected_tree(shares, [0.28] * 9, 9, None)
    draft = planned(tree, [0.5, 0.4], Prices(RowCosts.even(0.1), 1, 1, 1.0), [0.11], 9).draft((9, 9))
    assert draft.tokens == (1, 2, 3, 9, 9, 9, 9, 9, 9)  # 0.1 at the root, 0.3 after each of the others
    assert draft.parents == (ROOT, ROOT, 0, 0, 3, 1, 5, 2, 7)
    assert draft.context == {*range(len(draft))} and draft.masks == (9, 9)


@pytest.mark.parametrize(("mask_steps", "attached"), [(0.0, 6), (0.1, 6), (2.0, 0)])
def test_masks_are_attached_only_where_they_bring_more_than_they_cost(mask_steps: float, attached: int) -> None:
    tree, prices = expected_tree(shares, [0.28] * 9, 9, None), Prices(RowCosts.even(0.0), 1, 1, 1.0)
    plan = planned(tree, [0.5, 0.4], prices, [0.11], 20, mask_steps)
    assert (len(plan.tree), sum(plan.masks)) == (3, attached)


def a_chain(length: int) -> ExpectedTree:
    """Each of its tokens is right with a probability of 0.8."""
    return expected_tree(lambda nodes: [{1: 0.8} for _ in nodes], [0.001] * length, length, None)


def test_as_many_rows_as_the_price_says() -> None:
    """A tile of 16 rows is filled, the next one is not begun; where every row is expensive, few are taken."""
    tiles, expensive = RowCosts((1, 16, 17, 32), (1.0, 1.05, 2.0, 2.05)), RowCosts.even(0.2)
    rows = {}
    for name, costs in (("tiles", tiles), ("expensive", expensive), ("free", RowCosts.even(0.0))):
        prices = Prices(costs, 1, 1, 2.0)
        rows[name] = planned(a_chain(30), [], prices, prices.bars(30), 30).rows
    assert rows == {
        "tiles": 15,
        "expensive": 4,
        "free": 23,
    }  # 0.8 ** 4 = 0.41 is above 2 * 0.2, and 0.8 ** 23 above LEAST


def test_a_row_must_commit_what_it_or_a_cheaper_one_behind_it_costs() -> None:
    """The first rows are free, the next ones expensive, and the second tile is free again once it is begun."""
    costs = RowCosts((1, 3, 5, 6, 8), (1.0, 1.0, 1.2, 1.3, 1.34))
    least = Prices(costs, 1, 1, 2.0).least(7)
    assert least == [LEAST, LEAST, *[pytest.approx(0.04)] * 5], "0.2 and 0.2 may be paid for the sake of the last two"
    assert Prices(RowCosts.even(0.06), 5, 1, 2.0).least(3) == [pytest.approx(2.0 * 5 * 0.06 / 1.24)] * 3
    assert least == sorted(least) and Prices(RowCosts.even(0.9), 1, 1, 9.0).least(2) == [0.99, 0.99]


@pytest.mark.parametrize("most", [0, 1, 5, 12])
def test_never_more_rows_than_wanted(most: int) -> None:
    prices = Prices(RowCosts.even(0.0), 1, 1, 2.0)
    plan = planned(a_chain(12), [0.3, 0.2], prices, prices.bars(12), most)
    assert plan.rows <= most and (plan.rows > most // 2 or not most)


def test_every_prompt_takes_every_row() -> None:
    alone, behind_five = (Prices(RowCosts.even(0.06), prompts, 1, 2.0) for prompts in (1, 5))
    assert alone.bars(9) == [pytest.approx(0.12)]
    assert behind_five.bars(9) == [pytest.approx(2.0 * 5 * 0.06 / 1.24)]
    assert behind_five.steps(3) == pytest.approx((1 + 19 * 0.06) / 1.24)


def test_agreement_raises_a_chance_and_dissent_lowers_it() -> None:
    alone = pooled({7: 0.7}, {}, {})
    agreed, refused = pooled({7: 0.7}, {7: 0.7, 8: 0.2}, {}), pooled({7: 0.7}, {8: 0.9}, {})
    assert alone == {7: 0.7} and agreed[7] > 0.85 and refused[7] < 0.4 < refused[8]
    sure, unsure = pooled({}, {}, {7: 0.999, 8: 0.0005}), pooled({}, {}, {7: 0.5, 8: 0.2})
    assert sure[7] > 0.99 and sum(unsure.values()) < 0.95, "who is sure leaves little for what nobody guessed"
    both, one = pooled({}, {7: 0.6, 8: 0.3}, {7: 0.6, 8: 0.3}), pooled({}, {7: 0.6, 8: 0.3}, {})
    assert both[7] > one[7] > one[8] and sum(both.values()) < 1.0
