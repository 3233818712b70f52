"""The graph, with scripted models: what is asked, what is tried, what is recorded.

What can be switched off for a measurement is really off, and nothing else changes.

Guards the way to stop: a step that waits, decodes or streams ends soon after the asker said so, and says who came first.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agent.ask_model import shown
from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentOptions
from agent.conversation import Answer, Conversation, EmptyQuestion
from agent.observe.events import Answered, Asked, Event, Finished, Started, Waiting, Wrote
from decoding.serving.model_queue import Stopped
from tests.agent.conftest import ScriptedModel, Talk
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database
from tools.linking.link_schema import link

PLAN = "singer: country | SELECT COUNT(*) FROM _ WHERE _"
COUNT = "SELECT COUNT(*) FROM singer WHERE country = 'France'"
STEP_KEYS = {
    "name", "decoder", "prompt_tokens", "cached_tokens", "new_tokens", "target_forwards", "tokens_per_forward",
    "wall_ms", "plain_ms", "plain_ms_source",
}  # fmt: skip
ANSWER_KEYS = {
    "question", "sql", "dialect", "columns", "rows", "truncated", "answer", "attempts", "steps", "total_ms",
    "plain_total_ms", "error", "continues", "shown", "example", "confidence", "probably_wrong", "doubts",
    "alternatives", "votes", "plans", "which_reading",
    "features", "escalated",
}  # fmt: skip


def names(answer: Answer) -> list[str]:
    return [step["name"] for step in answer.steps]


def test_a_straight_answer(talk: Talk) -> None:
    answer = talk(PLAN, COUNT).ask("How many singers are from France?")
    assert answer.rows == [[2]]
    assert answer.sql == COUNT
    assert "2" in answer.answer
    assert answer.error is None
    assert names(answer) == ["link", "plan", "generate", "check", "execute", "answer"]
    assert set(answer.to_dict()) == ANSWER_KEYS
    assert all(set(step) >= STEP_KEYS for step in answer.steps)
    assert json.loads(answer.to_json())["rows"] == [[2]]


def test_a_wrong_name_is_repaired_without_asking_the_model_again(talk: Talk) -> None:
    """One table of the query owns the column: a deterministic rule suffices."""
    wrong = (
        "SELECT T2.country FROM singer AS T1 JOIN concert AS T2 ON T1.singer_id = T2.singer_id WHERE T2.title = 'Up'"
    )
    answer = talk(PLAN, wrong).ask("Where does the singer of Up come from?")
    assert answer.rows == [["Spain"]]
    assert answer.attempts[-1]["repaired"]
    assert "refine" not in names(answer)


def test_a_value_at_the_wrong_column_is_moved_to_the_right_one(talk: Talk) -> None:
    """COUNT(*) of nothing is a row, so that nobody would look for a mistake in it."""
    answer = talk(PLAN, "SELECT COUNT(*) FROM singer WHERE name = 'France'").ask("How many singers are from France?")
    assert answer.rows == [[2]]
    assert answer.attempts[-1]["repaired"]


def test_the_model_is_told_what_went_wrong_and_corrects_it(talk: Talk) -> None:
    conversation = talk(PLAN, "SELECT nonsense_xyz FROM singer", COUNT)
    answer = conversation.ask("How many singers are from France?")
    assert answer.rows == [[2]]
    assert names(answer).count("refine") == 1
    assert [attempt["error"] is None for attempt in answer.attempts] == [False, True]
    assert answer.attempts[0]["error"]["kind"] == "unknown_column"


def test_attempts_are_bounded_and_the_last_error_is_told(talk: Talk) -> None:
    lines = [f"SELECT nonsense_{i} FROM singer" for i in range(9)]
    answer = talk(PLAN, *lines[:4], max_attempts=4).ask("How many?")
    assert answer.sql is None
    assert len(answer.attempts) == 4
    assert answer.error is not None
    assert answer.error["kind"] == "unknown_column"
    assert "nonsense_3" in answer.answer


def test_a_model_that_repeats_itself_is_asked_once_more_and_its_real_error_is_told(talk: Talk) -> None:
    """ "The model wrote the same query again" once hid the SQL and the error, after three repetitions."""
    bad = "SELECT nonsense_xyz FROM singer"
    answer = talk(PLAN, *[bad] * 9, max_attempts=9).ask("How many?")
    assert names(answer).count("refine") == 2
    assert answer.error is not None
    assert answer.error["kind"] == "unknown_column"
    assert "again" not in answer.answer
    assert bad in answer.answer


@pytest.mark.parametrize("nothing", ["", "  ", "\n"])
def test_an_empty_question_is_refused(talk: Talk, nothing: str) -> None:
    with pytest.raises(EmptyQuestion):
        talk(PLAN, COUNT).ask(nothing)


def test_no_sql_is_tried_twice(talk: Talk) -> None:
    """The same statement in another layout is the same statement: it must not be checked or run again."""
    bad = "SELECT nonsense_xyz FROM singer"
    answer = talk(PLAN, bad, "select  nonsense_xyz from SINGER", max_attempts=2).ask("How many?")
    assert names(answer).count("check") == 1
    assert "again" in answer.attempts[-1]["error"]["message"]


def test_an_empty_result_is_an_answer(talk: Talk) -> None:
    answer = talk(PLAN, "SELECT name FROM singer WHERE age > 99").ask("Who is older than 99?")
    assert (answer.rows, answer.error) == ([], None) and "No rows" in answer.answer


@pytest.mark.parametrize("statement", ["DELETE FROM singer", "DROP TABLE singer", "SELECT 1; SELECT 2"])
def test_writing_is_refused(talk: Talk, statement: str) -> None:
    """The asker is not told to have asked for it: SQL of the model's own, such as AVG(NOT ""), once ended with exit code 4."""
    answer = talk(PLAN, statement, max_attempts=1).ask("How many singers are there?")
    assert answer.error is not None
    assert (answer.error["kind"], answer.attempts[0]["error"]["kind"]) == ("other", "refused")
    assert answer.answer.startswith("No working SQL was found (refused: ")
    assert answer.sql is None
    assert "refused" in answer.answer


def test_follow_up_questions_see_the_turns_before(talk: Talk) -> None:
    conversation = talk(PLAN, COUNT, PLAN, "SELECT COUNT(*) FROM singer WHERE country = 'Spain'")
    conversation.ask("How many singers are from France?")
    *_, answered = conversation.events("And from Spain?")
    assert isinstance(answered, Answered)
    assert answered.answer["rows"] == [[1]]
    state: dict[str, Any] = conversation._graph.get_state(conversation._config).values
    assert [turn["question"] for turn in state["turns"]] == ["How many singers are from France?", "And from Spain?"]
    assert len(answered.answer["attempts"]) == 1, "the attempts of the first question do not leak into the second"


def test_events_tell_the_story_in_order(talk: Talk) -> None:
    events = list(talk(PLAN, COUNT).events("How many singers are from France?"))
    written = "".join(e.text for e in events if isinstance(e, Wrote) and e.step == "generate")
    assert written == COUNT
    started = [e.step for e in events if isinstance(e, Started)]
    finished = [e.record["name"] for e in events if isinstance(e, Finished)]
    assert started == finished
    assert isinstance(events[0], Asked) and isinstance(events[-1], Answered)


def test_the_chat_profile_reads_fenced_sql_out_of_prose(talk: Talk) -> None:
    reply = f"Sure! Here is the query:\n```sql\n{COUNT};\n```\nIt counts."
    answer = talk("1. singer", reply, profile="chat").ask("How many singers are from France?")
    assert answer.sql == COUNT


def test_big_results_stay_out_of_the_state(talk: Talk) -> None:
    conversation = talk(PLAN, "SELECT a.name FROM singer a, singer b, singer c, singer d", preview_rows=5)
    answer = conversation.ask("All combinations")
    assert len(answer.rows) == 81
    state: dict[str, Any] = conversation._graph.get_state(conversation._config).values
    assert len(state["preview"]["rows"]) == 5


PLAN_ABLATIONS = "singer.country | SELECT COUNT(*) FROM _ WHERE _"

WRONG = "SELECT T2.country FROM singer AS T1 JOIN concert AS T2 ON T1.singer_id = T2.singer_id WHERE T2.title = 'Up'"
QUESTION = "Which country do singers from France come from?"


class _Listening(ScriptedModel):
    """Keeps the first prompt."""

    first: str = ""

    def _stream(self, messages: list[BaseMessage], *args: Any, **kw: Any) -> Any:
        self.first = self.first or str(messages[0].text)
        return super()._stream(messages, *args, **kw)


def _listen(talk: Talk, **options: Any) -> tuple[Conversation, _Listening]:
    conversation, model = talk(**options), _Listening(responses=[PLAN_ABLATIONS, COUNT])
    conversation.toolbox.model = model
    return conversation, model


def _slots(talk: Talk, **options: Any) -> dict[str, str]:
    """The slots of the first prompt."""
    conversation, model = _listen(talk, **options)
    conversation.ask(QUESTION)
    return dict(line.split(": ", 1) for line in model.first.splitlines() if ": " in line)


def test_each_switch_empties_its_own_slot(talk: Talk) -> None:
    whole = _slots(talk)
    without_values, without_hints = _slots(talk, values=False), _slots(talk, hints=False)
    assert whole.keys() - without_values.keys() == {"values"}
    assert whole.keys() - without_hints.keys() == {"hint"}
    assert without_hints == {slot: text for slot, text in whole.items() if slot != "hint"}


def test_without_hints_a_large_schema_stays_whole(talk: Talk, database: Database) -> None:
    assert len(shown(database.schema(), link(database.schema(), "singers"), 4).tables) == 1
    for hints, tables in ((True, 1), (False, 2)):
        conversation, model = _listen(talk, schema_budget=4, hints=hints)
        conversation.ask("How old are the singers?")
        assert model.first.count("(") == tables


def test_without_repair_the_model_is_asked(talk: Talk) -> None:
    right = "SELECT country FROM singer JOIN concert ON concert.singer_id = singer.singer_id WHERE title = 'Up'"
    answer = talk(PLAN_ABLATIONS, WRONG, right, repair=False).ask("Where does the singer of Up come from?")
    assert [step["name"] for step in answer.steps].count("refine") == 1
    assert answer.rows == [["Spain"]]


def test_a_remembered_turn_is_shown_as_one_that_was_answered(talk: Talk) -> None:
    """Guards the follow-ups that are measured behind gold SQL."""
    conversation, model = _listen(talk)
    conversation.remember("How many singers?", "SELECT COUNT(*) FROM singer")
    assert conversation.ask("Only the young ones").rows == [[2]]
    assert "history: How many singers? => SELECT COUNT(*) FROM singer\n" in model.first


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    checkpoint = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=4096)
    return load_model(ModelChoice(model=str(checkpoint), profile="compact", dtype="fp32"), progress=lambda *told: None)


@pytest.fixture
def conversation(loaded: LoadedModel, database: Database) -> Conversation:
    return Conversation(loaded.toolbox(database, AgentOptions(max_attempts=1)))


def test_a_step_that_waits_says_how_many_come_first_and_can_be_called_off(conversation: Conversation) -> None:
    queue, seen = conversation.toolbox.model.decoder.queue, list[Event]()  # type: ignore[attr-defined]

    def ask() -> None:
        for event in conversation.events("How many singers?"):
            seen.append(event)
            if isinstance(event, Waiting):
                conversation.toolbox.stop.stop()

    with queue.take(queue.seats), pytest.raises(Stopped):
        ask()
    assert seen[-1] == Waiting("plan", 1) and not any(isinstance(event, Wrote) for event in seen)
    assert len(queue) == 0


def test_a_step_called_off_while_it_decodes_is_not_followed_by_another(conversation: Conversation) -> None:
    stop, started = conversation.toolbox.stop, list[str]()

    def ask() -> None:
        for event in conversation.events("How many singers?"):
            if isinstance(event, Started):
                started.append(event.step)
                if event.step == "plan":
                    stop.stop()

    with pytest.raises(Stopped):
        ask()
    assert started[-1] == "plan" and len(conversation.toolbox.model.decoder.queue) == 0  # type: ignore[attr-defined]
    stop.clear()
    assert conversation.ask("How many singers?").steps


def test_stop_reaches_any_model_that_streams(talk: Talk) -> None:
    conversation = talk("p", "SELECT name FROM singer")
    conversation.toolbox.model.sleep = 0.1  # type: ignore[attr-defined]  # a letter: who listens keeps up
    written: list[str] = []

    def listen() -> None:
        for event in conversation.events("Names?"):
            if isinstance(event, Wrote) and event.step == "generate":
                written.append(event.text)
                conversation.toolbox.stop.stop()

    with pytest.raises(Stopped):
        listen()
    assert 0 < len("".join(written)) < len("SELECT name FROM singer")
