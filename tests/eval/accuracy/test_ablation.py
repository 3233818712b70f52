"""The ablation: what its rows change, figures that are those of the records, and replies that rows share.

The figures of a run, from records alone.

Texts that are decoded once: what counts as the same text, what is given again, and what is never kept.

An evaluation on a Ray cluster: real workers, one of which is killed, and the records of one process.
"""

import json
import os
import signal
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from agent.assemble import ModelChoice, load_model
from agent.context import AgentOptions
from decoding.engine.method import LookupCorpus
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta
from eval.accuracy import ablation
from eval.accuracy.ablation import Questions, ReusingDecoder, Row, Stage, ablate, key_of, markdown, stages
from eval.accuracy.predict import ray_predict
from eval.accuracy.record import Predict, Prediction, Record, read_records
from eval.accuracy.run import evaluate
from eval.accuracy.summary import percentile, summarise, wilson_95
from eval.datasets.official import Example, database_file
from eval.scoring.bird import BIRD
from eval.scoring.spider_rules import SPIDER
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.one_of import OneOf
from tests.decoding.models.tiny_models import tiny_checkpoint
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
    rows = stages("auto", default, ["parts", "without"])[:10]  # two of the rules left out stand for all
    assert [row.options == default for row in rows[-3:]] == [True, False, False]
    questions = Questions(examples, "spider", SPIDER, "sqlite")
    measured = list(ablate(questions, ModelChoice(model, dtype="fp32", profile="compact"), load_model, rows, out))
    counted = dict.fromkeys(("new_tokens", "target_forwards", "steps"))
    records = [
        asdict(record) | counted | {"features": {name: round(value, 5) for name, value in record.features.items()}}
        for file in sorted(out.glob("*/records.jsonl"))
        for record in read_records(file, Record)
    ]
    return measured, records


def test_rows_share_replies_and_get_the_same_records_without_times(
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
    for file in (tmp_path / "shared").glob("*/*.json*"):  # what is reused is never told as time
        assert '"plain_ms"' not in (text := file.read_text()) and '"mean_ms": 0' not in text


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


PROMPT = "How many singers are there?"
DRAWN = SamplingParams(temperature=0.9, seed=1, max_new_tokens=12)


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", seed=5)
    return load_text_decoder(str(path), dtype="fp32")


def _draws(seeds: range) -> list[SamplingParams]:
    return [replace(DRAWN, seed=seed) for seed in seeds]


def test_only_what_is_new_is_decoded_and_the_order_is_that_of_the_settings(
    inner: TextDecoder, texts: list[int]
) -> None:
    reusing = ReusingDecoder(inner)
    reusing.samples(PROMPT, _draws(range(2)))
    again = reusing.samples(PROMPT, _draws(range(3, -1, -1)))
    assert texts == [2, 2]
    assert [one.tokens for one in again] == [one.tokens for one in inner.samples(PROMPT, _draws(range(3, -1, -1)))]
    assert [one.rounds[0].sequence for one in again] == [0, 1, 2, 3] and len({one.tokens for one in again}) > 1


def test_a_text_that_is_given_again_comes_with_the_same_pieces(inner: TextDecoder, texts: list[int]) -> None:
    reusing = ReusingDecoder(inner)
    with reusing.reserved(1, lambda: False) as view:  # as the agent asks
        first = list(view.stream(PROMPT, [DRAWN]))
    assert list(reusing.stream(PROMPT, [DRAWN])) == first and len(texts) == 1
    pieces = "".join(piece.text for piece in first if isinstance(piece, TextDelta))
    assert isinstance(first[-1], Completion) and first[-1].text == pieces


CHANGES: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"seed": 2},
    {"max_new_tokens": 13},
    {"stop": ("x",)},
    {"likelihood": True},
    {"other_prompts": ("How many?",)},
    {"decoder": "jacobi"},
    {"decoder": "jacobi", "options": {"block_size": 4}},
]


def test_texts_are_told_apart_by_all_that_they_depend_on() -> None:
    keys = [key_of(PROMPT, replace(DRAWN, **change)) for change in [{}, *CHANGES]] + [key_of("Why?", DRAWN)]
    assert len(set(keys)) == len(keys) and None not in keys


def test_recall_and_the_seed_of_a_greedy_text_change_nothing() -> None:
    recall = LookupCorpus()
    recall.add([1, 2, 3])
    greedy = replace(DRAWN, temperature=0.0)
    assert key_of(PROMPT, replace(DRAWN, recall=recall)) == key_of(PROMPT, DRAWN)
    assert key_of(PROMPT, replace(greedy, seed=7)) == key_of(PROMPT, greedy)


def test_a_constraint_without_a_key_is_asked_again(inner: TextDecoder, texts: list[int]) -> None:
    reusing = ReusingDecoder(inner)
    bound = replace(DRAWN, constraint=OneOf([[5], [6, 7]], inner.tokenizer.stop_ids, inner.target.vocab_size))
    assert reusing.generate(PROMPT, bound).tokens == reusing.generate(PROMPT, bound).tokens
    assert texts == [1, 1]


def test_what_was_called_off_is_not_kept(inner: TextDecoder) -> None:
    reusing, rounds = ReusingDecoder(inner), list[TextDelta]()
    for piece in reusing.stream(PROMPT, [DRAWN], lambda: len(rounds) == 2):
        if isinstance(piece, TextDelta):
            rounds.append(piece)
        else:
            assert piece.finish == "cancelled"
    assert len(rounds) == 2
    assert reusing.generate(PROMPT, DRAWN) == replace(inner.generate(PROMPT, DRAWN), rounds=ANY)


def _records(out: Path) -> list[dict[str, Any]]:
    return sorted((json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()), key=str)


def test_a_cluster_that_loses_a_worker_leaves_the_records_of_one_process(invented: Path, tmp_path: Path) -> None:
    """Guards against an answer that is lost, asked for twice, or given to another question."""
    pytest.importorskip("ray")
    database = invented / "database" / "library" / "library.sqlite"
    golds = ["SELECT name FROM author", "SELECT count(*) FROM book", "SELECT title FROM book"]
    examples = [Example(str(i), "library", f"question {i}", golds[i % 3], database=database) for i in range(9)]
    died, worked = tmp_path / "died", tmp_path / "worked"
    worked.mkdir()

    def make() -> Predict:
        def predict(example: Example) -> Prediction:
            if example.id == "4" and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            (worked / str(os.getpid())).touch()
            return Prediction(example.gold, None, 12.5, 30, 10)

        return predict

    def run(predict: Predict, threads: int, out: str) -> dict[str, Any]:
        names: dict[str, Any] = {"dataset": "spider", "rules": SPIDER, "progress": False}
        return evaluate(examples, predict, "sqlite", tmp_path / out, at_once=threads, **names)

    with ray_predict("local", 2, make) as (predict, threads):
        summary = run(predict, threads, "cluster")
    assert died.exists() and len(list(worked.iterdir())) >= 2 and not (worked / str(os.getpid())).exists()
    assert summary == run(make(), 1, "alone")
    assert _records(tmp_path / "cluster") == _records(tmp_path / "alone")
