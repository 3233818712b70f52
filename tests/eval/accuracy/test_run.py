"""Runs from end to end: records, resuming, summaries, prediction files. What answers is a function of this file.

What a budget loses is counted right.

The harness on itself: gold against gold is right wherever it can be run, and the rest is named.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.accuracy.harness import Case, Row, check_gold, measure, needed
from eval.accuracy.record import Prediction, ResumeError
from eval.accuracy.run import evaluate
from eval.datasets.official import Example
from eval.datasets.selection import load_dataset
from eval.scoring.bird import BIRD
from eval.scoring.spider_rules import SPIDER
from tools.databases.open_database import open_database
from tools.linking.link_schema import Link, link
from tools.schema import Schema

_SPIDER: dict[str, Any] = {"dataset": "spider", "rules": SPIDER}
_NAMES: dict[str, Any] = {"model": "none", "decoder": "plain"}


def _gold(example: Example) -> Prediction:
    return Prediction(example.gold, None, 12.5, 30, 10, [{"name": "generate"}])


def _examples(invented: Path) -> list[Example]:
    library = invented / "database" / "library" / "library.sqlite"
    golds = ["SELECT name FROM author", "SELECT count(*) FROM book", "SELECT title FROM book ORDER BY title"]
    made = [Example(str(i), "library", f"question {i}", gold, "", "easy", library) for i, gold in enumerate(golds)]
    return [*made, Example("3", "gone", "question 3", "SELECT 1", database=None)]


def _run(invented: Path, out: Path, predict: Callable[[Example], Prediction] = _gold, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"progress": False} | _SPIDER | _NAMES
    return evaluate(_examples(invented), predict, "sqlite", out, **(options | changes))


def _lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def test_records_hold_what_is_promised(invented: Path, tmp_path: Path) -> None:
    """Guards the fields that reports are made from, and a question without database: counted, not asked, named."""
    asked: list[str] = []

    def predict(example: Example) -> Prediction:
        asked.append(example.id)
        return _gold(example)

    summary = _run(invented, tmp_path, predict)
    assert asked == ["0", "1", "2"]
    first, *_, last = _lines(tmp_path)
    promised = {"id", "db_id", "question", "gold", "sql", "executed", "correct", "error", "difficulty", "wall_ms",
                "new_tokens", "target_forwards", "steps"}  # fmt: skip
    assert promised <= first.keys()
    assert (first["correct"], first["executed"], first["error"]) == (True, True, None)
    assert first["steps"] == [{"name": "generate"}]
    assert (last["executed"], last["correct"], last["gold_error"]) == (False, False, "the database is not there")
    assert (summary["n"], summary["executed"], summary["ex"]) == (4, 3, 1.0)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert len((tmp_path / "pred.txt").read_text().splitlines()) == 4


def test_questions_asked_at_once_leave_the_same_records(invented: Path, tmp_path: Path) -> None:
    """The barrier opens only when three threads are inside."""
    barrier = threading.Barrier(3, timeout=20)

    def predict(example: Example) -> Prediction:
        barrier.wait()
        return _gold(example)

    summary = _run(invented, tmp_path / "together", predict, at_once=3)
    assert summary == _run(invented, tmp_path / "alone")
    assert sorted(_lines(tmp_path / "together"), key=str) == sorted(_lines(tmp_path / "alone"), key=str)
    for name in ("pred.txt", "gold.txt"):
        assert (tmp_path / "together" / name).read_text() == (tmp_path / "alone" / name).read_text()


def test_what_fails_at_once_ends_the_run_and_keeps_what_is_done(invented: Path, tmp_path: Path) -> None:
    def predict(example: Example) -> Prediction:
        if example.id == "1":
            raise RuntimeError("the model is gone")
        return _gold(example)

    with pytest.raises(RuntimeError, match="model is gone"):
        _run(invented, tmp_path, predict, at_once=2)
    assert _run(invented, tmp_path, at_once=2)["executed"] == 3


def test_every_kind_of_wrong_prediction_is_told_apart(invented: Path, tmp_path: Path) -> None:
    """Guards `error`: SQL that does not run, none at all, and SQL that runs but is wrong."""
    answers = {
        "0": Prediction("SELECT nam FROM author", "gave up"),
        "1": Prediction("", "no SQL in the answer"),
        "2": Prediction("SELECT title FROM book", "ran in the agent, too"),
    }
    summary = _run(invented, tmp_path, lambda example: answers[example.id])
    lines = _lines(tmp_path)
    assert [line["error"] for line in lines[:3]] == ["no such column: nam", "no prediction", None]
    assert [line["prediction_error"] for line in lines[:3]] == [answers[str(i)].error for i in range(3)]
    assert (summary["ex"], summary["invalid_sql_rate"]) == (0.0, 0.6667)


class _Stopped(Exception):
    """What interrupts a run in these tests."""


def test_a_killed_run_goes_on_where_it_stopped(invented: Path, tmp_path: Path) -> None:
    """Guards resuming: nothing is asked twice, the torn last line of a crash is dropped, the summary is the same."""
    asked: list[str] = []

    def stops_at_two(example: Example) -> Prediction:
        if example.id == "2" and "2" not in asked:
            asked.append(example.id)
            raise _Stopped
        asked.append(example.id)
        return _gold(example)

    with pytest.raises(_Stopped):
        _run(invented, tmp_path, stops_at_two)
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"id": "2", "db_id": "libr')
    summary = _run(invented, tmp_path, stops_at_two)
    assert asked == ["0", "1", "2", "2"]
    assert summary == _run(invented, tmp_path / "whole")
    assert [line["id"] for line in _lines(tmp_path)] == ["0", "1", "2", "3"]


def test_a_finished_run_asks_nothing(invented: Path, tmp_path: Path) -> None:
    """Guards against a second call that adds records."""
    summary = _run(invented, tmp_path)

    def refuses(example: Example) -> Prediction:
        raise AssertionError(example.id)

    assert _run(invented, tmp_path, refuses) == summary
    assert len(_lines(tmp_path)) == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decoder": "jacobi"}, "decoder = plain, not jacobi"),
        ({"timeout_s": 5.0}, r"timeout_s = 30.0, not 5.0"),
        ({"settings": {"seed": 1}}, "seed = None, not 1"),
    ],
)
def test_other_settings_do_not_mix(invented: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """Guards against one file with records of two runs."""
    _run(invented, tmp_path)
    with pytest.raises(ResumeError, match=says) as raised:
        _run(invented, tmp_path, **changes)
    assert "choose another output folder" in str(raised.value)


def test_other_questions_do_not_mix(invented: Path, tmp_path: Path) -> None:
    """Guards the same for another selection of questions."""
    _run(invented, tmp_path)
    with pytest.raises(ResumeError, match="questions = 4:"):
        evaluate(_examples(invented)[:2], _gold, "sqlite", tmp_path, **_SPIDER, progress=False, **_NAMES)


def test_a_damaged_line_is_not_skipped(invented: Path, tmp_path: Path) -> None:
    """Guards against silently losing a record in the middle."""
    _run(invented, tmp_path)
    file = tmp_path / "records.jsonl"
    file.write_text("{}\n" + file.read_text())
    with pytest.raises(ResumeError, match="is damaged"):
        _run(invented, tmp_path)


def test_bird_on_superhero(bird: Path, tmp_path: Path) -> None:
    """Guards BIRD's run and its figures on real data: gold against gold is 1.0 in every one that is not a time."""
    examples = load_dataset("bird", bird, limit=20)
    summary = evaluate(examples, _gold, "sqlite", tmp_path, dataset="bird", rules=BIRD, timed_runs=3, progress=False)
    assert (summary["executed"], summary["ex"], summary["soft_f1"]) == (20, 1.0, 1.0)
    assert 0.5 <= summary["r_ves"] <= 1.12
    assert len(json.loads((tmp_path / "predict_dev.json").read_text())) == 20


def test_progress_goes_to_stderr(invented: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Guards stdout, whose last line is the caller's; stderr tells the accuracy so far."""
    _run(invented, tmp_path, progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "EX 100.0%" in captured.err
    assert "4/4" in captured.err


GOLD = "SELECT T2.title FROM author AS T1 JOIN book AS T2 ON T1.author_id = T2.author_id WHERE T1.NAME = 'Bo Lind'"
NEEDED = frozenset({("book", "title"), ("author", "author_id"), ("book", "author_id"), ("author", "name")})

NO_HINTS = (0.0, 1.0, 0.0)  # hinted, precision, recall


def _schema(invented: Path) -> Schema:
    database = open_database(invented / "database" / "library" / "library.sqlite", engine="sqlite")
    try:
        return database.schema()
    finally:
        database.close()


def test_what_a_query_needs_is_named_as_the_schema_does(invented: Path) -> None:
    """Guards aliases, case, and tables of which no column is named."""
    assert needed(GOLD, _schema(invented)) == (frozenset({"author", "book"}), NEEDED)
    assert needed("SELECT count(*) FROM Loan", _schema(invented)) == (frozenset({"loan"}), frozenset())


def test_lost_tables_lower_the_recall(invented: Path) -> None:
    """Guards the three counts on a case that keeps all it needs, and one that is cut to the wrong table."""
    schema = _schema(invented)
    right = link(schema, "Which books has the author Bo Lind?")
    wrong, half = (Link("member", None, 1.0),), (Link("author", None, 1.0),)
    cases = [Case(schema, links, frozenset({"author", "book"}), NEEDED, NEEDED) for links in (right, wrong)]
    assert measure("x", cases, 200) == Row("x", 2, 200, 0, 1.0, 1.0, 0, *NO_HINTS)
    assert measure("x", cases[:1], 12) == Row("x", 1, 12, 1, 1.0, 1.0, 0, *NO_HINTS)
    assert measure("x", cases, 12) == Row("x", 2, 12, 2, 0.5, 0.5, 1, *NO_HINTS)
    partly = Case(schema, half, frozenset({"author", "book"}), NEEDED, NEEDED)
    assert measure("x", [partly], 8) == Row("x", 1, 8, 1, 0.5, 0.5, 1, *NO_HINTS)


def test_hints_are_judged_by_the_columns_of_the_plan(invented: Path) -> None:
    """A right hint, a wrong one, and a key whose score is too low to be hinted."""
    links = (Link("book", "title", 1.3), Link("author", "author_id", 1.1), Link("member", "name", 0.9))
    row = measure("x", [Case(_schema(invented), links, frozenset({"author", "book"}), NEEDED, NEEDED)], 200)
    assert (row.hinted, row.hint_precision, row.hint_recall) == (2.0, 0.5, 0.25)


def test_all_of_spider_dev(spider: Path) -> None:
    """Guards every step between a gold query and its verdict: 972 of 972, and the other 62 are named with the reason."""
    check = check_gold(load_dataset("spider", spider), SPIDER)
    assert (check.n, check.executed, check.agreed) == (1034, 972, 972)
    assert len(check.unrunnable) == 62
    assert {(db_id, reason) for _, db_id, reason in check.unrunnable} == {("wta_1", "the database is not there")}
    assert check.disagreed == ()


def test_all_of_bird_superhero(bird: Path) -> None:
    """Guards the same for BIRD's rules."""
    check = check_gold(load_dataset("bird", bird, db="superhero"), BIRD)
    assert (check.n, check.executed, check.agreed) == (129, 129, 129)
    assert check.unrunnable == check.disagreed == ()


def test_gold_that_fails_or_hangs_is_named(invented: Path) -> None:
    """Guards the list of gold queries that could not be run, and the value trap that makes a gold query wrong."""
    library = invented / "database" / "library" / "library.sqlite"
    fine = Example("fine", "library", "?", "SELECT name FROM author", database=library)
    bomb = "SELECT count(*) FROM " + ", ".join(f"loan AS t{i}" for i in range(16))
    examples = [
        fine,
        replace(fine, id="broken", gold="SELECT shoe FROM author"),
        replace(fine, id="bomb", gold=bomb),
        replace(fine, id="trap", gold="SELECT value FROM book"),
        replace(fine, id="missing", database=None),
    ]
    check = check_gold(examples, SPIDER, timeout_s=0.5)
    assert (check.n, check.executed, check.agreed) == (5, 2, 1)
    assert check.unrunnable == (
        ("broken", "library", "no such column: shoe"),
        ("bomb", "library", "timeout after 0.5 s"),
        ("missing", "library", "the database is not there"),
    )
    assert check.disagreed == ("trap",)
