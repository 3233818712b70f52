"""Every node and every optional step raises once: the question ends with its rows or with one sentence, and the next works.

A second look that failed in a comparison of SQL once took away an answer that was there, with 128 lines of traceback.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.calibration import Calibration
from agent.context import AgentContext, AgentOptions, Larger
from agent.conversation import Answer, Conversation, Retry
from agent.observe.audit import FAILURE, OPTIONAL_STEPS, AuditLog, Trail, Wanted
from agent.observe.events import Answered, Asked, Event
from agent.observe.step_record import NODES
from agent.prompts.profiles import load_profile
from decoding.engine.target import PromptTooLong
from decoding.errors import ModelError
from decoding.serving.model_queue import Stopped
from tests.agent.conftest import ScriptedModel, Talk
from tests.agent.planted import planted_node
from tools.databases.database import Database
from tools.databases.open_database import open_database

PLAN, COUNT = "singer: country | SELECT COUNT(*) FROM _ WHERE _", "SELECT COUNT(*) FROM singer WHERE country = 'France'"
QUESTION, ROWS = "How many singers are from France?", [[2]]
KEEP_THE_ROWS = ("doubt", "escalate", "answer")
DOUBTS_ALL = Calibration(-2.0, {}, 0.5)
Ask = Callable[[Conversation], Iterator[Event]]


def _plainly(conversation: Conversation) -> Iterator[Event]:
    return conversation.events(QUESTION)


def _following(conversation: Conversation) -> Iterator[Event]:
    conversation.remember(QUESTION, COUNT)
    return conversation.events("And from Spain?")


def _in_doubt(conversation: Conversation) -> Iterator[Event]:
    """It may be a follow-up, or stand by itself."""
    conversation.remember("How many singers are there?", "SELECT COUNT(*) FROM singer")
    return conversation.events("What is the highest age?")


def _escalated(conversation: Conversation) -> Iterator[Event]:
    """The model is sure of nothing, and there is a larger one."""
    larger = ScriptedModel(responses=[f"```sql\n{COUNT}\n```"])
    conversation.toolbox.larger = Larger("larger", larger, load_profile("chat"))
    conversation.toolbox.calibration = DOUBTS_ALL
    return conversation.events(QUESTION)


# What leads through a node that not every question passes: lines of the model, options, and how the question is asked.
WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any], Ask]] = {
    "adapt": ((), {}, _following),
    "clarify": ((PLAN, COUNT), {"clarify": True}, _plainly),
    "refine": ((PLAN, "SELECT nonsense_xyz FROM singer"), {}, _plainly),
    "escalate": ((PLAN, COUNT), {}, _escalated),
    "vary": ((PLAN, COUNT), {}, lambda talk: talk.events(QUESTION, again=Retry(refused=(COUNT,)))),
}


@pytest.fixture(params=list(NODES))
def node(request: pytest.FixtureRequest) -> Iterator[str]:
    with planted_node(request.param, RuntimeError("planted\nfailure")):
        yield request.param


def test_a_node_that_fails_ends_the_question_and_not_the_conversation(node: str, talk: Talk) -> None:
    lines, options, ask = WAYS.get(node, ((PLAN, COUNT), {}, _plainly))
    conversation = talk(*lines, **options)
    first, *_, last = ask(conversation)
    assert isinstance(first, Asked) and isinstance(last, Answered)
    answer = Answer(**last.answer)
    assert "RuntimeError: planted failure" in answer.answer and "Traceback" not in answer.answer
    assert f"“{NODES[node].title}”" in answer.answer and "\n" not in answer.answer
    if node in KEEP_THE_ROWS:
        assert (answer.sql, answer.rows, answer.error) == (COUNT, ROWS, None)
        assert conversation.undo() == QUESTION
    else:
        assert answer.error is not None and answer.error["kind"] == FAILURE
        assert (answer.sql, answer.rows, answer.shown) == (None, [], None)
    conversation.toolbox.model = ScriptedModel(responses=[PLAN, COUNT])
    assert (again := conversation.ask(QUESTION)).rows == ROWS
    assert "planted" not in again.answer


class Step:
    """How an optional step is brought to fail: what raises in its place, and what leads there."""

    def __init__(self, raises: str, *lines: str, ask: Ask = _plainly, **options: Any) -> None:
        self.raises, self.lines, self.ask, self.options = raises, lines or (PLAN, COUNT), ask, options


_WRITE, _DOUBT, _ANSWER = "agent.nodes.write", "agent.nodes.assess", "agent.nodes.answer"
STEPS = {
    "rewrite": Step(f"{_WRITE}.rewritten"),
    "choose": Step(f"{_WRITE}.choose_reading", PLAN, PLAN, COUNT, COUNT, ask=_in_doubt),
    "translate": Step("agent.candidates.from_sqlite"),
    "repair": Step("agent.candidates.repair_query"),
    "confidence": Step(f"{_DOUBT}.judge"),
    "readings": Step(f"{_DOUBT}.other_plans", rerank=True),
    "escalate": Step(f"{_WRITE}._by_larger", ask=_escalated),
    "present": Step(f"{_ANSWER}.present"),
    "sentence": Step(f"{_ANSWER}.sentence"),
    "remember": Step(f"{_ANSWER}.turn_of"),
}


def _fails(*arguments: object, **named: object) -> Any:
    raise AttributeError("planted")


@pytest.mark.parametrize("name", list(OPTIONAL_STEPS))
def test_an_optional_step_that_fails_leaves_the_rows(
    name: str, singers: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = STEPS[name]
    monkeypatch.setattr(step.raises, _fails)
    monkeypatch.setattr(f"{_WRITE}.is_doubtful", lambda *_: name == "rewrite")
    opened = open_database(singers) if name == "translate" else database
    toolbox = AgentContext(
        opened, ScriptedModel(responses=list(step.lines)), load_profile("compact"), AgentOptions(**step.options)
    )
    toolbox.calibration = DOUBTS_ALL
    *_, last = step.ask(Conversation(toolbox))
    assert isinstance(last, Answered)
    answer = Answer(**last.answer)
    assert (answer.rows, answer.error) == (ROWS, None)
    told = f"{OPTIONAL_STEPS[name]} failed and was left out (AttributeError: planted): ask again"
    assert answer.answer.count(told[1:]) == 1
    if opened is not database:
        opened.close()


def test_what_nobody_expected_is_in_the_log_with_its_traceback(
    talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """And nowhere on the screen."""
    conversation = talk(PLAN, COUNT)
    conversation.toolbox.trail = Trail(AuditLog(tmp_path / "log.sqlite"), "ada", "ask")
    url = "postgresql://ada:S3cret@h/x"
    with planted_node("check", RuntimeError(f"lost {url}")), caplog.at_level(logging.ERROR, "sqlagent"):
        answer = Conversation(conversation.toolbox).ask(QUESTION)
    assert "see `sqlagent logs --outcome failure`" in answer.answer and "//ada:***@h/x" in answer.answer
    (entry,) = conversation.toolbox.trail.log.entries(Wanted(outcome=FAILURE))
    assert entry.question == QUESTION and "Traceback" in entry.message and "planted.py" in entry.message
    assert "S3cret" not in entry.message + answer.to_json()
    assert caplog.records and capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "kind"), [(ModelError("the head is damaged"), "model"), (PromptTooLong("it is too long"), "usage")]
)
def test_an_error_with_a_message_for_people_is_told_by_that_alone(talk: Talk, error: Exception, kind: str) -> None:
    with planted_node("plan", error):
        answer = talk().ask(QUESTION)
    assert answer.error is not None and (answer.error["kind"], answer.answer) == (kind, str(error))


@pytest.mark.parametrize("error", [Stopped(), KeyboardInterrupt()])
def test_who_stops_a_question_stops_it(talk: Talk, error: BaseException) -> None:
    with planted_node("check", error), pytest.raises(type(error)):
        talk(PLAN, COUNT).ask(QUESTION)
    with planted_node("doubt", error), pytest.raises(type(error)):
        talk(PLAN, COUNT).ask(QUESTION)


def test_rows_outlast_the_deadline_of_a_second_look(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were thrown away, and "no SQL was written" was told with the SQL that had run."""
    conversation = talk(PLAN, COUNT, rerank=True, deadline_s=0.3)
    conversation.toolbox.calibration = DOUBTS_ALL

    def slow(state: object, toolbox: AgentContext) -> Any:
        while True:
            toolbox.stop.check()

    monkeypatch.setattr(f"{_DOUBT}.other_plans", slow)
    answer = conversation.ask(QUESTION)
    assert (answer.rows, answer.error) == (ROWS, None)
    assert "The time was over after 0.3 s" in answer.answer
    assert conversation.undo() == QUESTION


def test_a_conversation_that_cannot_be_kept_is_answered_all_the_same(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: the rows are there, and the checkpointer raises when it is to store them."""
    conversation = talk(PLAN, COUNT)
    saver, stored = conversation._graph.checkpointer, []

    def put(whole: Callable[..., Any], *arguments: Any) -> Any:
        stored.append(arguments)
        if conversation.toolbox.shown is not None:
            raise OSError(28, "No space left on device")
        return whole(*arguments)

    monkeypatch.setattr(saver, "put", partial(put, saver.put))
    answer = conversation.ask(QUESTION)
    assert stored and (answer.rows, answer.error) == (ROWS, None)
    assert "No space left on device" in answer.answer


def test_each_optional_step_has_its_test() -> None:
    assert list(STEPS) == list(OPTIONAL_STEPS)
