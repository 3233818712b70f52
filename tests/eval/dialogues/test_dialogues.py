"""Dialogues: the file and what can be wrong with it, turns judged, the conversation they stand in, resuming, the figures."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.context import AgentOptions
from agent.conversation import Answer, Conversation
from decoding.checkpoints.cache_folder import cache_root
from eval.accuracy.dialogues import (
    BUNDLED,
    Dialogue,
    FirstTurns,
    Turn,
    TurnRecord,
    ask_dialogues,
    in_short,
    read_dialogues,
    summarise,
)
from eval.accuracy.record import read_records
from eval.datasets.official import DatasetError
from tests.eval.answering import AnsweringModel, Answers
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.result import Result

OPTIONS = AgentOptions(max_attempts=1, present=False)
NAMES = {"dataset": "dialogues", "model": "none", "decoder": "plain"}
ONE = {
    "id": "d01",
    "database": "shop.sqlite",
    "turns": [
        {"question": "What about names?", "sql": "SELECT name FROM city", "kind": "opening", "continues": None},
        {"question": "What about sizes?", "sql": "SELECT size FROM city", "kind": "columns", "continues": 1},
        {"question": "Start over.", "sql": None, "kind": "start_over", "continues": None},
        {
            "question": "What about a list?",
            "sql": "SELECT size FROM city ORDER BY size",
            "kind": "sort",
            "continues": 2,
        },
    ],
}
TWO = {
    "id": "d02",
    "database": "shop.sqlite",
    "turns": [
        {"question": "What about all?", "sql": "SELECT count(*) FROM city", "kind": "opening", "continues": None}
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "shop.sqlite")
    connection.executescript(
        "CREATE TABLE city (name TEXT, size DOUBLE); INSERT INTO city VALUES ('Oslo', 2), ('Riga', 1), ('Bonn', 3.5);"
    )
    connection.close()
    return tmp_path


def _write(folder: Path, *dialogues: Any) -> Path:
    file = folder / "dialogues.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in dialogues), encoding="utf-8")
    return file


def _run(
    folder: Path, answers: Answers, dialogues: list[Dialogue] | None = None, first_turns: FirstTurns = "own"
) -> tuple[dict[str, Any], AnsweringModel]:
    model = AnsweringModel(answers)
    asked = dialogues or read_dialogues(_write(folder, ONE, TWO))
    summary = ask_dialogues(
        asked, lambda: model, OPTIONS, folder / "out", first_turns=first_turns, names=NAMES, settings={}, progress=False
    )
    return summary, model


def _gold(question: str) -> str:
    turns: list[dict[str, Any]] = [*ONE["turns"], *TWO["turns"]]  # type: ignore[misc]
    return next(turn["sql"] or "SELECT 1" for turn in turns if turn["question"] == question)


def _but(question: str, sql: str) -> Answers:
    return lambda asked: sql if asked == question else _gold(asked)


def _correct(folder: Path) -> dict[str, bool | None]:
    return {record.id: record.correct for record in read_records(folder / "out" / "records.jsonl", TurnRecord)}


def test_gold_answers_are_right_and_what_has_no_gold_is_not_scored(folder: Path) -> None:
    summary, _ = _run(folder, _gold)
    assert _correct(folder) == {"d01/1": True, "d01/2": True, "d01/3": None, "d01/4": True, "d02/1": True}
    figures = ("turns", "n", "ex", "dialogues", "dialogues_right")
    assert [summary[name] for name in figures] == [5, 4, 1.0, 2, 1.0]
    assert summary["by_kind"]["start_over"]["n"] == 0 and summary["by_kind"]["start_over"]["ex"] is None
    assert summary["by_kind"]["opening"]["n"] == 2
    assert json.loads((folder / "out" / "summary.json").read_text()) == summary


@pytest.mark.parametrize(
    ("question", "sql", "right"),
    [
        (
            "What about sizes?",
            "SELECT size FROM city ORDER BY size DESC",
            True,
        ),  # any order, as the gold query has none
        ("What about sizes?", "SELECT CAST(size AS DECIMAL(9, 2)) FROM city", True),  # DuckDB's other type
        ("What about sizes?", "SELECT name FROM city", False),
        ("What about a list?", "SELECT size FROM city ORDER BY size DESC", False),
        ("What about names?", "SELECT nme FROM city", False),
    ],
)
def test_a_turn_is_judged_by_its_rows(folder: Path, question: str, sql: str, right: bool) -> None:
    """Guards the order where the gold query has one, types, SQL that does not run, and a dialogue with one wrong turn."""
    summary, _ = _run(folder, _but(question, sql))
    assert summary["ex"] == (1.0 if right else 0.75)
    assert summary["dialogues_right"] == (1.0 if right else 0.5)


@pytest.mark.parametrize(
    ("first_turns", "before"), [("own", "SELECT size FROM city"), ("gold", "SELECT name FROM city")]
)
def test_a_turn_stands_behind_own_or_gold_sql(folder: Path, first_turns: FirstTurns, before: str) -> None:
    """Guards what later turns see of an earlier one that was answered wrongly."""
    answers = _but("What about names?", "SELECT size FROM city")
    summary, model = _run(folder, answers, first_turns=first_turns)
    prompt = next(prompt for prompt in model.prompts if "\nquestion: What about sizes?\n" in prompt)
    assert f"What about names? => {before}" in prompt
    assert summary["ex"] == 0.75 and summary["settings"]["first_turns"] == first_turns


def test_progress_is_shown_to_the_end(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, dialogues = AnsweringModel(_gold), read_dialogues(_write(folder, ONE, TWO))
    ask_dialogues(dialogues, lambda: model, OPTIONS, folder / "out", names=NAMES, settings={})
    captured = capfd.readouterr()
    assert captured.out == "" and "EX 100.0%" in captured.err and "5/5" in captured.err


def test_dialogues_do_not_see_one_another(folder: Path) -> None:
    _, model = _run(folder, _gold)
    last = next(prompt for prompt in model.prompts if "\nquestion: What about all?\n" in prompt)
    assert "\nhistory:" not in last
    seeds = {prompt.split("\nquestion: ")[1]: seed for prompt, seed in zip(model.prompts, model.seeds, strict=True)}
    assert len(set(seeds.values())) > 3


def test_a_stopped_run_goes_on_with_the_next_dialogue(folder: Path) -> None:
    """Guards resuming: a dialogue that is over is not asked again, and a line that was cut off is written once."""

    def stops(question: str) -> str:
        if question == "What about all?":
            raise RuntimeError("out of power")
        return _gold(question)

    with pytest.raises(RuntimeError, match="out of power"):
        _run(folder, stops)
    summary, model = _run(folder, _gold)
    assert summary["ex"] == 1.0
    assert all("\nquestion: What about all?\n" in prompt for prompt in model.prompts)
    file = folder / "out" / "records.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[1:])[:-20], encoding="utf-8")
    assert {**_run(folder, _gold)[0], "mean_ms": 0, "p95_ms": 0} == {**summary, "mean_ms": 0, "p95_ms": 0}
    assert sorted(_correct(folder)) == ["d01/1", "d01/2", "d01/3", "d01/4", "d02/1"]
    assert _run(folder, _gold)[1].prompts == []


def _told(expected: int | None, continues: int | None, number: int) -> TurnRecord:
    return TurnRecord(f"d/{number}", "sort", "?", "SELECT 1", "", True, None, expected, continues, 1.0, 0, 0, [], None)


def test_what_a_turn_was_taken_for_is_counted() -> None:
    """Guards each cell of the confusion, with turn numbers that a truth test would not tell apart."""
    pairs = [(None, None), (1, 1), (2, None), (1, None), (None, 1), (1, 2), (2, 1), (3, 1), (2, 2)]
    summary = summarise([], [_told(*pair, number) for number, pair in enumerate(pairs)])
    assert summary["continued_right"] == round(3 / 9, 4)
    wanted = {"leaning_taken_as_standalone": 2, "standalone_taken_as_leaning": 1, "wrong_turn": 3}
    assert summary["continued_wrong"] == wanted
    assert summary["by_kind"]["sort"]["continued_right"] == round(3 / 9, 4)


def test_what_the_agent_says_it_continues_is_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the way of `Answer.continues` into the records."""
    ask: Callable[..., Answer] = Conversation.ask

    class Told:
        """An answer that says what it goes on from, whatever the agent found."""

        def __init__(self, answer: Answer) -> None:
            self._answer, self.continues = answer, 1 if answer.question == "What about sizes?" else None

        def __getattr__(self, name: str) -> Any:
            return getattr(self._answer, name)

    monkeypatch.setattr(Conversation, "ask", lambda *args, **kw: Told(ask(*args, **kw)))
    summary, _ = _run(folder, _gold)
    told = {record.id: record.continues for record in read_records(folder / "out" / "records.jsonl", TurnRecord)}
    assert told == {"d01/1": None, "d01/2": 1, "d01/3": None, "d01/4": None, "d02/1": None}
    assert summary["continued_right"] == 0.8 and summary["continued_wrong"]["leaning_taken_as_standalone"] == 1


def test_a_gold_query_that_fails_is_told_before_anything_is_asked(folder: Path) -> None:
    bad = TWO | {"turns": [{"question": "Q", "sql": "SELECT nme FROM city", "kind": "opening", "continues": None}]}
    with pytest.raises(DatasetError, match=r"dialogue d02, turn 1: the gold query fails: .*nme"):
        _run(folder, _gold, read_dialogues(_write(folder, ONE, bad)))
    assert not (folder / "out").exists()


def _turn(**changes: Any) -> dict[str, Any]:
    return {"question": "Q", "sql": "SELECT 1", "kind": "opening", "continues": None} | changes


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"id": "d02"', r"line 2: Invalid JSON"),
        (TWO | {"turns": []}, "line 2: the dialogue has no turns"),
        (TWO | {"id": 2}, "line 2: id: Input should be a valid string"),
        (ONE, "line 2: there is a dialogue d01 already"),
        (TWO | {"database": "gone.sqlite"}, "line 2: there is no database .*gone.sqlite"),
        (TWO | {"turns": [_turn(), {"question": "Q"}]}, "line 2: turn 2, sql: Field required"),
        (TWO | {"turns": [_turn(sql=7)]}, "line 2: turn 1, sql: Input should be a valid string"),
        (TWO | {"turns": [_turn(), _turn(continues=2)]}, "line 2: turn 2 continues 2, which is no turn before it"),
        (TWO | {"turns": [_turn(continues=0)]}, "line 2: turn 1 continues 0"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(folder: Path, bad: Any, says: str) -> None:
    file = _write(folder, ONE)
    with file.open("a", encoding="utf-8") as more:
        more.write((bad if isinstance(bad, str) else json.dumps(bad)) + "\n")
    with pytest.raises(DatasetError, match=says) as raised:
        read_dialogues(file)
    assert "\n" not in str(raised.value)


def test_the_bundled_dialogues_are_whole(tmp_path: Path) -> None:
    """Guards the file itself: every gold query runs on the example database, and openings stand by themselves."""
    dialogues = read_dialogues(BUNDLED)
    kinds = Counter(turn.kind for dialogue in dialogues for turn in dialogue.turns)
    assert len(dialogues) == kinds["opening"] == 40 and len(kinds) == 17
    alone = {"opening", "new_subject", "contrast", "start_over"}
    assert all((t.continues is None) == (t.kind in alone) for d in dialogues for t in d.turns)

    def all_gold_ran() -> AnsweringModel:
        raise LookupError("a model is wanted")

    with pytest.raises(LookupError, match="a model is wanted"):  # gold queries run before anything is asked
        ask_dialogues(dialogues, all_gold_ran, OPTIONS, tmp_path, names=NAMES, settings={}, progress=False)


@pytest.mark.parametrize(("name", "count"), [("questions", 60), ("questions_fresh", 30)])
def test_the_questions_of_demo_check_are_whole(name: str, count: int) -> None:
    """Guards the files themselves: different questions, each by itself, none from elsewhere, and gold rows for each."""
    asked = read_dialogues(BUNDLED.with_name(f"record_shop_{name}.jsonl"))
    turns = [turn for dialogue in asked for turn in dialogue.turns]
    others = {"record_shops", "record_shops_hard", "record_shop_questions", "record_shop_questions_fresh"}
    known = {turn.question for other in others - {f"record_shop_{name}"} for turn in openings(f"{other}.jsonl")}
    assert len(asked) == len(turns) == len({turn.question for turn in turns} - known) == count
    assert all(turn.continues is None for turn in turns)
    database = open_database(example_database(cache_root()))
    try:
        for turn in turns:
            result = database.execute(turn.sql or "")
            assert isinstance(result, Result) and result.rows, turn.question
    finally:
        database.close()


def openings(name: str) -> list[Turn]:
    return [turn for dialogue in read_dialogues(BUNDLED.with_name(name)) for turn in dialogue.turns]


def test_a_run_says_which_wrong_answers_were_headed() -> None:
    def record(number: int, correct: bool | None, headed: bool, error: str | None = None) -> TurnRecord:
        return TurnRecord(
            id=f"d/{number}", kind="k", question=f"Question {number}?", gold="g", sql="" if error else "SELECT 1",
            correct=correct, error=None, expected=None, continues=None, wall_ms=1.0, new_tokens=1, target_forwards=1,
            steps=[], prediction_error=error, confidence=0.4, probably_wrong=headed,
        )  # fmt: skip

    records = [
        record(1, True, False), record(2, True, True), record(3, False, True), record(4, False, False),
        record(5, False, False, "no working SQL"), record(6, None, False),
    ]  # fmt: skip
    figures = summarise([], records)["headed"]
    assert figures == {
        "right": 2, "right_and_headed": 1, "wrong": 3, "wrong_and_headed": 1, "wrong_and_failed": 1
    }  # fmt: skip
    lines = in_short(records, figures)
    assert lines[:2] == ["probably wrong  Question 3?  →  SELECT 1", "wrong           Question 4?  →  SELECT 1"]
    assert lines[2] == "no answer       Question 5?  →  no working SQL"
    assert lines[3].startswith("2 right, 3 wrong; headed “Probably wrong”: 1 wrong and 1 right")
