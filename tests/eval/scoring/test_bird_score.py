"""Our BIRD scorers against verdicts recorded from the official scripts, and the arithmetic of R-VES."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from eval.scoring.bird import BIRD, r_ves, time_reward
from eval.scoring.referee import Referee, Task

PAIRS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "fixtures" / "bird_verdicts.json").read_text())[
    "pairs"
]


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["covers"] for pair in PAIRS])
def test_verdicts_are_the_official_ones(pair: dict[str, Any], invented: Path) -> None:
    """Guards every rule of EX and soft F1: one rule, one or more pairs."""
    database = str(invented / "database" / pair["db"] / f"{pair['db']}.sqlite")
    task = Task(BIRD, "sqlite", pair["gold"], BIRD.prediction(pair["predicted"]), (database,), timeout_s=30)
    verdict = Referee(lambda _: None).judge(task)
    assert verdict.correct == pair["ex"]
    assert verdict.soft_f1 == pytest.approx(pair["soft_f1"], abs=1e-9)


def test_there_are_enough_pairs_of_both_verdicts() -> None:
    """Guards against fixtures that a scorer with one answer for everything would pass."""
    assert len(PAIRS) >= 40
    assert {pair["ex"] for pair in PAIRS} == {0, 1}
    assert len({pair["soft_f1"] for pair in PAIRS}) > 5


@pytest.mark.parametrize(
    ("ratio", "reward"),
    [
        (4.0, 1.25),
        (2.0, 1.25),
        (1.99, 1.0),
        (1.0, 1.0),
        (0.99, 0.75),
        (0.5, 0.75),
        (0.49, 0.5),
        (0.25, 0.5),
        (0.1, 0.25),
    ],
)
def test_reward_steps(ratio: float, reward: float) -> None:
    """Guards the steps' edges, which belong to the upper step, and the case of no spread at all."""
    assert time_reward([ratio] * 5) == reward


def test_reward_drops_outliers() -> None:
    """Guards against one slow run deciding: 99 ratios of about 1.2 and one of 1,000 stay a reward of 1."""
    assert time_reward([1.2 + i / 1e4 for i in range(99)] + [1000.0]) == 1.0


def test_r_ves_is_the_mean_of_square_roots() -> None:
    """Guards the formula: wrong queries count 0, a twice as fast one counts sqrt(1.25)."""
    assert r_ves([0.0, 1.0, 1.25]) == pytest.approx((1 + math.sqrt(1.25)) / 3)
    assert r_ves([]) == 0.0
