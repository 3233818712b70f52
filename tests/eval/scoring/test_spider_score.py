"""Spider's comparison of rows where recorded pairs do not reach: many columns, many equal columns."""

import random
import time

import pytest

from eval.scoring.spider_rules import _Row as Row
from eval.scoring.spider_rules import spider_match

# Equal cells in each pair of rows, equal columns as bags, and yet no order of columns makes the rows equal.
_GOLD: list[Row] = [(1, 2, 3), (2, 1, 3), (1, 2, 4), (1, 2, 4)]
_OTHER: list[Row] = [(1, 2, 3), (1, 2, 3), (1, 2, 4), (2, 1, 4)]


@pytest.mark.parametrize("ordered", [True, False])
def test_any_permutation_of_columns_matches(ordered: bool) -> None:
    """Guards the search: twelve columns in any order, rows shuffled where order is free, one changed cell refused."""
    rng = random.Random(3)
    gold: list[Row] = [tuple(rng.randrange(4) for _ in range(12)) for _ in range(30)]
    columns = rng.sample(range(12), 12)
    predicted: list[Row] = [tuple(row[c] for c in columns) for row in gold]
    if not ordered:
        rng.shuffle(predicted)
    assert spider_match(gold, predicted, ordered)
    predicted[7] = (predicted[7][0], predicted[7][2], predicted[7][1], *predicted[7][3:])
    changed = predicted[7][1] != predicted[7][2]
    assert spider_match(gold, predicted, ordered) != changed


def test_equal_columns_do_not_explode() -> None:
    """Guards against trying 12! orders of twelve equal columns beside three that cannot be matched."""
    gold, other = ([(0,) * 12 + row for row in rows] for rows in (_GOLD, _OTHER))
    started = time.perf_counter()
    assert not spider_match(gold, other, ordered=False)
    assert spider_match(gold, gold[::-1], ordered=False)
    assert time.perf_counter() - started < 5


def test_same_cells_in_other_pairing_do_not_match() -> None:
    """Guards against comparing columns one by one: each column matches as a bag, the rows do not."""
    assert not spider_match(_GOLD, _OTHER, ordered=False)
