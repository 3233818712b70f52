"""Guards the event records: what a question tells while it runs, and that a file of them says the same again."""

import json
from dataclasses import replace

import pytest

from agent.conversation import records
from agent.observe.events import (
    Answered,
    Asked,
    EventError,
    Failed,
    Finished,
    Judged,
    Measured,
    Noted,
    Ran,
    Wrote,
    from_json,
    to_json,
)
from agent.observe.node_table import Note
from decoding.engine.rounds import Round
from tests.agent.conftest import Talk

COUNT = "SELECT COUNT(*) FROM singer WHERE country = 'France'"
ROUND = Round(0, 0, 1, 7, (5, 6), (-1, 0), (0,), (5, 9), (4,), 0.1, 2.5, 0.2, "stop")


@pytest.mark.parametrize(
    "event",
    [
        Asked("how many?", "France is a country", "singers"),
        Wrote("generate", "SELECT", (ROUND,), {5: "SEL", 6: "x", 9: "ECT", 4: " "}),
        Noted("link", (Note("tables", "singer"), Note("SQL", "SELECT 1", "sql"))),
        Ran(2, "SELECT 1", ("a", "b"), ((1, "x"), (None, "ü")), 2, True, 1.5),
        Measured(1, 0, 2.5),
        Ran(0, "SELEC", error={"kind": "syntax", "message": "no", "name": None, "position": 3, "candidates": ["x"]}),
        Judged(1, None),
        Failed("Stopped.", True),
    ],
)
def test_an_event_survives_its_line(event: object) -> None:
    line = to_json(event)  # type: ignore[arg-type]
    assert "\n" not in line
    assert from_json(line) == event


@pytest.mark.parametrize(
    "line", ["", "no json", "[]", "{}", '{"event": "unheard"}', '{"event": "asked"}', '{"event": []}']
)
def test_a_line_that_is_no_event_is_named(line: str) -> None:
    with pytest.raises(EventError, match="not an event"):
        from_json(line)


STEP = {"name": "plan", "wall_ms": 1.0}
ANSWER = {
    "question": "q", "sql": None, "dialect": "duckdb", "columns": ["a"], "rows": [[1]], "truncated": False, "answer": "1",
    "attempts": [], "steps": [STEP], "total_ms": 1.0, "plain_total_ms": None, "error": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        {"event": "started", "step": ["x"]},
        {"event": "asked", "question": {"a": 1}},
        {"event": "judged", "turn": "one", "liked": None},
        {"event": "unclear", "phrase": "x", "options": ["a"]},
        {"event": "noted", "step": "link", "notes": [{"label": "a"}]},
        {"event": "finished", "record": {"name": ["plan"], "wall_ms": 1}},
        {"event": "finished", "record": {"name": "plan"}},
        {"event": "finished", "record": STEP | {"wall_ms": float("nan")}},
        {"event": "answered", "answer": {}, "row_count": 1},
        {"event": "answered", "answer": ANSWER | {"rows": [[1, 2]]}, "row_count": 1},
        {"event": "answered", "answer": ANSWER | {"attempts": [{"sql": 1}]}, "row_count": 1},
        {"event": "answered", "answer": ANSWER | {"error": {"kind": "other"}}, "row_count": 1},
        {"event": "ran", "turn": 0, "sql": "SELECT 1", "rows": [1]},
        {"event": "ran", "turn": 0, "sql": "SELECT 1", "columns": ["a", "b"], "rows": [[1]]},
        {"event": "ran", "turn": 0, "sql": "SELECT 1", "error": {"candidates": 3}},
    ],
)
def test_a_damaged_event_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(EventError, match="not an event"):
        from_json(json.dumps(body))


@pytest.mark.parametrize(
    "change", [{"draft_parents": (1, 0)}, {"draft_parents": (-1,)}, {"accepted": (7,)}, {"committed": ()}, {"batch": 0}]
)
def test_a_round_that_cannot_be_drawn_is_refused(change: dict[str, object]) -> None:
    wrote = Wrote("plan", "x", (replace(ROUND, **change),), {})  # type: ignore[arg-type]
    with pytest.raises(EventError):
        from_json(to_json(wrote))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(EventError):
        from_json('{"event": "ran", "turn": 0, "sql": "x", "rows": ' + "[" * 100_000 + "]" * 100_000 + "}")


def test_what_an_older_program_left_out_is_filled_in() -> None:
    event = from_json(json.dumps({"event": "finished", "record": STEP}))
    assert isinstance(event, Finished)
    assert event.record["decoder"] is None and event.record["detail"] == ""


def test_a_question_tells_its_steps_in_order(talk: Talk) -> None:
    told = list(records(talk("singer: country", COUNT), "How many are from France?"))
    assert isinstance(told[0], Asked)
    assert isinstance(told[-1], Answered)
    steps = [event.record["name"] for event in told if isinstance(event, Finished)]
    assert steps == ["link", "plan", "generate", "check", "execute", "answer"]
    notes = {(event.step, note.label): note.text for event in told if isinstance(event, Noted) for note in event.notes}
    assert notes["plan", "plan"] == "singer: country"
    assert notes["execute", "ran"] == COUNT
    assert "singer.country" in notes["link", "tables and columns that the question may mean"]


def test_text_arrives_piece_by_piece(talk: Talk) -> None:
    told = records(talk("p", COUNT), "How many?")
    pieces = [event.text for event in told if isinstance(event, Wrote) and event.step == "generate"]
    assert len(pieces) > 10
    assert "".join(pieces) == COUNT


def test_rows_are_cut_and_their_number_is_not(talk: Talk) -> None:
    *_, last = records(talk("p", "SELECT name FROM singer"), "Names?", shown=2)
    assert isinstance(last, Answered)
    assert len(last.answer["rows"]) == 2
    assert last.row_count == 3
    assert from_json(to_json(last)) == last
