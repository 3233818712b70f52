"""The figures of a run, from records alone."""

import pytest

from eval.accuracy.record import Record
from eval.accuracy.summary import percentile, summarise, wilson_95
from eval.scoring.bird import BIRD


def _record(number: int, **changes: object) -> Record:
    values: dict[str, object] = {
        "id": str(number), "db_id": "d", "question": "?", "gold": "g", "sql": "s", "executed": True, "correct": False,
        "em": None, "error": None, "difficulty": "easy", "wall_ms": 100.0, "new_tokens": 20, "target_forwards": 10,
        "steps": [],
    }  # fmt: skip
    return Record.from_json(
        values | {"prediction_error": None, "gold_error": None, "soft_f1": None, "ves_reward": None} | changes
    )


_NAMES = {"dataset": "spider", "engine": "sqlite", "model": "m", "decoder": "plain"}


def test_all_figures() -> None:
    """Guards each formula, what it is taken over, and that an unscored question is named and lowers nothing."""
    records = [
        _record(0, correct=True, em=True, wall_ms=100.0),
        _record(1, correct=True, em=False, difficulty="hard", wall_ms=300.0, continues=1),
        _record(2, error="no such column: x", em=False, wall_ms=200.0, new_tokens=40),
        _record(3, executed=False, gold_error="timeout after 30 s", wall_ms=400.0, target_forwards=20),
    ]
    assert summarise(records, **_NAMES) == _NAMES | {
        "n": 4,
        "executed": 3,
        "ex": 0.6667,
        "ex_ci95": [0.2077, 0.9385],
        "ex_of_all": 0.5,
        "em": 0.3333,
        "soft_f1": None,
        "r_ves": None,
        "invalid_sql_rate": 0.3333,
        "mean_tokens_per_forward": 2.0,
        "tokens_per_s": 100.0,
        "mean_ms": 200.0,
        "p50_ms": 200.0,
        "p95_ms": 300.0,
        "continued": 1,
        "by_difficulty": {"easy": {"n": 2, "ex": 0.5, "em": 0.5}, "hard": {"n": 1, "ex": 1.0, "em": 0.0}},
        "trust": None,
        "unrunnable_gold": [{"id": "3", "db_id": "d", "error": "timeout after 30 s"}],
    }


def test_birds_figures() -> None:
    """Guards soft F1 and R-VES: means over the executed questions, wrong ones with their zeros."""
    records = [
        _record(0, correct=True, soft_f1=1.0, ves_reward=1.0, difficulty="simple"),
        _record(1, soft_f1=0.5, ves_reward=0.0, difficulty="moderate"),
        _record(2, executed=False, gold_error="x", soft_f1=0.0, ves_reward=0.0),
    ]
    summary = summarise(records, levels=BIRD.levels, **_NAMES)
    assert (summary["soft_f1"], summary["r_ves"], summary["em"]) == (0.75, 0.5, None)
    assert list(summary["by_difficulty"]) == ["simple", "moderate"]


def test_no_record_at_all() -> None:
    """Guards against a division by zero: every figure without data is None."""
    summary = summarise([], **_NAMES)
    assert summary["n"] == summary["executed"] == 0
    assert {summary[key] for key in ("ex", "em", "tokens_per_s", "p50_ms", "mean_tokens_per_forward")} == {None}
    assert summary["ex_ci95"] is None


@pytest.mark.parametrize(
    ("hits", "n", "interval"),
    [(50, 100, [0.4038, 0.5962]), (0, 10, [0.0, 0.2775]), (10, 10, [0.7225, 1.0]), (620, 1034, [0.5694, 0.6291])],
)
def test_wilson_interval(hits: int, n: int, interval: list[float]) -> None:
    """Guards the interval, against published values (0/10: 0.2775; 50/100: 0.4038 to 0.5962)."""
    assert wilson_95(hits, n) == interval


def test_percentile_is_a_value_that_occurred() -> None:
    """Guards nearest rank at its ends: one value, and the 95th of 100."""
    assert percentile([7.0], 50) == percentile([7.0], 95) == 7.0
    assert percentile([float(i) for i in range(1, 101)], 95) == 95.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
