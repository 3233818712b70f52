"""The ablation: what its rows change, figures that are those of the records, and replies that rows share.

The figures of a run, from records alone.
"""

from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.assemble import ModelChoice, load_model
from agent.context import AgentOptions
from eval.accuracy import ablation
from eval.accuracy.ablation import Questions, Row, Stage, ablate, markdown, stages
from eval.accuracy.record import Record, read_records
from eval.accuracy.summary import percentile, summarise, wilson_95
from eval.datasets.official import Example, database_file
from eval.scoring.bird import BIRD
from eval.scoring.spider_rules import SPIDER
from tests.decoding.models.jacobi_data import ending_checkpoint
from tools.repair.rules import RULE_NAMES

DEFAULT = AgentOptions(rerank=True)
RULES = len(RULE_NAMES)


def _changed(before: Stage, after: Stage) -> set[str]:
    names = [field.name for field in fields(AgentOptions)]
    return {name for name in names if getattr(before.options, name) != getattr(after.options, name)}


@pytest.mark.parametrize(("kinds", "rules"), [(["parts"], 1), (["rules"], RULES), (["parts", "rules"], RULES)])
def test_each_row_has_one_part_more_up_to_the_default_agent(kinds: list[str], rules: int) -> None:
    rows = stages("auto", DEFAULT, kinds)
    assert [row.adapter for row in rows] == ["none", *["auto"] * (len(rows) - 1)]
    assert [row.against for row in rows] == [None, *(row.name for row in rows[:-1])]
    assert rows[0].options == rows[1].options and rows[-1].options == DEFAULT
    changes = [_changed(before, row) for before, row in pairwise(rows[1:])]
    assert all(len(changed) == 1 for changed in changes) and changes.count({"without_rules"}) == rules
    off = {"max_attempts", "orders", "constrain", "values", "hints", "repair", "without_rules", "rerank"}
    assert _changed(rows[0], rows[-1]) == off


def test_a_part_that_is_off_by_default_has_no_row() -> None:
    names = [row.name for row in stages("auto", replace(DEFAULT, hints=False), ["parts"])]
    assert "+ linking" not in names and "+ refine" in names


@pytest.mark.parametrize("kinds", [["without"], ["parts", "without"]])
def test_rules_left_out_are_compared_with_the_default_agent(kinds: list[str]) -> None:
    rows = stages("auto", DEFAULT, kinds)
    default, *others = rows[-1 - RULES :]
    assert default.options == DEFAULT and {row.against for row in others} == {default.name}
    assert [row.options.without_rules for row in others] == [(name,) for name in RULE_NAMES]
    assert all(len(_changed(default, row)) == 1 for row in others)


@pytest.mark.parametrize(
    ("against", "shown"),
    [(None, "|  |  |  |  |"), ("default agent", "| default agent | +5.0 | -1.0 to +11.0 | 3, 1 |")],
)
def test_the_table_shows_percent(against: str | None, shown: str) -> None:
    compared: dict[str, Any] = {"gain": 0.05, "gain_ci95": (-0.01, 0.11), "won": 3, "lost": 1} if against else {}
    none: dict[str, Any] = dict.fromkeys(("gain", "gain_ci95", "won", "lost"))
    row = Row("+ grammar", 40, 0.4, [0.26, 0.55], against, invalid_sql_rate=0.005, forwards=12.34, **(none | compared))
    line = markdown([row]).splitlines()[2]
    assert shown in line and "| 40.0 % | 26.0 to 55.0 |" in line and line.endswith("| 0.5 % | 12.3 |")


def _measured(root: Path, model: str, out: Path) -> tuple[list[Row], list[dict[str, Any]]]:
    """The rows and all their records, without what says how often the model was asked. Features are rounded: in fp32 on
    torch's operators the last digits depend on the batch."""
    asked = {"library": ["Which authors are there?", "How many books has Ada Fern?"], "gauge": ["Which labels?"]}
    examples = [
        Example(f"{name}/{question}", name, question, "SELECT 1", database=database_file(root / "database", name))
        for name, questions in asked.items()
        for question in questions
    ]
    default = AgentOptions(max_attempts=1)
    rows = stages("auto", default, ["parts", "without"])
    questions = Questions(examples, "spider", SPIDER, "sqlite")
    measured = list(ablate(questions, ModelChoice(model, dtype="fp32", profile="compact"), load_model, rows, out))
    counted = dict.fromkeys(("new_tokens", "target_forwards", "steps"))
    records = [
        asdict(record) | counted | {"features": {name: round(value, 5) for name, value in record.features.items()}}
        for file in sorted(out.glob("*/records.jsonl"))
        for record in read_records(file, Record)
    ]
    return measured, records


def test_rows_share_replies_and_get_the_same_records(
    invented: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[int]
) -> None:
    model = str(ending_checkpoint(tmp_path / "tiny", 8, seed=3, max_position_embeddings=4096))
    rows, shared = _measured(invented, model, tmp_path / "shared")
    fewer = sum(texts)
    texts.clear()
    monkeypatch.setattr(ablation, "ReusingDecoder", lambda decoder: decoder)
    _, fresh = _measured(invented, model, tmp_path / "fresh")
    assert shared == fresh and len(fresh) == 3 * len(rows) and len({record["sql"] for record in fresh}) > 3
    assert fewer < sum(texts)
    assert all(record["wall_ms"] == 0 for record in shared)


def test_what_is_reused_is_never_told_as_time(invented: Path, tmp_path: Path) -> None:
    model = str(ending_checkpoint(tmp_path / "tiny", 8, seed=3, max_position_embeddings=4096))
    _measured(invented, model, tmp_path / "out")
    for file in (tmp_path / "out").glob("*/*.json*"):
        text = file.read_text()
        assert '"plain_ms"' not in text and '"mean_ms": 0' not in text


def _record(number: int, **changes: object) -> Record:
    values: dict[str, object] = {
        "id": str(number), "db_id": "d", "question": "?", "gold": "g", "sql": "s", "executed": True, "correct": False,
        "error": None, "difficulty": "easy", "wall_ms": 100.0, "new_tokens": 20, "target_forwards": 10,
        "steps": [],
    }  # fmt: skip
    return Record.from_json(
        values | {"prediction_error": None, "gold_error": None, "soft_f1": None, "ves_reward": None} | changes
    )


_NAMES = {"dataset": "spider", "engine": "sqlite", "model": "m", "decoder": "plain"}


def test_all_figures() -> None:
    """Guards each formula, what it is taken over, and that an unscored question is named and lowers nothing."""
    records = [
        _record(0, correct=True, wall_ms=100.0),
        _record(1, correct=True, difficulty="hard", wall_ms=300.0, continues=1),
        _record(2, error="no such column: x", wall_ms=200.0, new_tokens=40),
        _record(3, executed=False, gold_error="timeout after 30 s", wall_ms=400.0, target_forwards=20),
    ]
    assert summarise(records, **_NAMES) == _NAMES | {
        "n": 4,
        "executed": 3,
        "ex": 0.6667,
        "ex_ci95": [0.2077, 0.9385],
        "ex_of_all": 0.5,
        "soft_f1": None,
        "r_ves": None,
        "invalid_sql_rate": 0.3333,
        "mean_tokens_per_forward": 2.0,
        "tokens_per_s": 100.0,
        "mean_ms": 200.0,
        "p50_ms": 200.0,
        "p95_ms": 300.0,
        "continued": 1,
        "by_difficulty": {"easy": {"n": 2, "ex": 0.5}, "hard": {"n": 1, "ex": 1.0}},
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
    assert (summary["soft_f1"], summary["r_ves"]) == (0.75, 0.5)
    assert list(summary["by_difficulty"]) == ["simple", "moderate"]


def test_no_record_at_all() -> None:
    """Guards against a division by zero: every figure without data is None."""
    summary = summarise([], **_NAMES)
    assert summary["n"] == summary["executed"] == 0
    assert {summary[key] for key in ("ex", "tokens_per_s", "p50_ms", "mean_tokens_per_forward")} == {None}
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
