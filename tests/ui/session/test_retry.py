"""Guards what a person's session remembers: follow-ups, retry, asking afresh, starting over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.observe.events import Asked, Event, Failed
from tests.ui.workspaces import scripted_workspace
from ui.session.conversation_view import ConversationView
from ui.session.run import retry_of
from ui.session.session import Session
from ui.views.messages import messages

COUNT = "How many albums?"
PER_COUNTRY_OF_THEM = "How many of them did the artists of each country release?"
SCRIPT = {
    COUNT: "SELECT COUNT(*) FROM albums",
    PER_COUNTRY_OF_THEM: "SELECT country, COUNT(*) FROM artists GROUP BY country",
}


@pytest.fixture
def ada(tmp_path: Path) -> Iterator[Session]:
    workspace = scripted_workspace(tmp_path, SCRIPT)
    yield workspace.session("one", "ada")
    workspace.close()


def ask(session: Session, question: str) -> None:
    list(session.ask(question))


def test_later_questions_see_earlier_ones(ada: Session) -> None:
    ask(ada, COUNT)
    ask(ada, PER_COUNTRY_OF_THEM)
    assert f"history: {COUNT} => {SCRIPT[COUNT]}" in _prompt(ada)
    assert _continues(ada) == 1


def test_retry_takes_the_other_reading_and_then_another_query(ada: Session) -> None:
    ask(ada, COUNT)
    ask(ada, PER_COUNTRY_OF_THEM)
    list(ada.ask(PER_COUNTRY_OF_THEM, again=1))
    assert "history:" not in _prompt(ada)
    answer = ada.view.turns[-1].answer
    assert answer is not None and "you have seen" in answer["answer"]  # the script knows one query for a question
    list(ada.ask(PER_COUNTRY_OF_THEM, again=2))
    assert f"history: {COUNT} => {SCRIPT[COUNT]}" in _prompt(ada)


def test_a_question_is_asked_by_itself_where_the_asker_wants_it_so(ada: Session) -> None:
    ask(ada, COUNT)
    list(ada.ask(PER_COUNTRY_OF_THEM, reading="standalone"))
    assert "history:" not in _prompt(ada) and _continues(ada) is None


def test_starting_over_forgets_what_came_before(ada: Session) -> None:
    ask(ada, COUNT)
    ask(ada, "Start over")
    assert ada.view.turns[-1].answer is not None and ada.view.turns[-1].answer["error"] is None
    ask(ada, PER_COUNTRY_OF_THEM)
    assert "history:" not in _prompt(ada)


def test_a_question_that_was_stopped_is_tried_as_at_first_and_in_its_place(ada: Session) -> None:
    """The first real try was once a sampled one, and stood below the stopped one."""
    stopped: list[Event] = [Asked(COUNT), Failed("Stopped.", stopped=True)]
    view = ConversationView([Asked("Names?"), Failed("Stopped.", stopped=True), *stopped])
    assert len(messages(view.turns)) == 4
    retry = retry_of(view.turns, 1)
    assert not retry.sampled and not retry.again.refused
    view.apply(Asked(COUNT))
    shown = messages(view.turns)
    assert [each["metadata"]["id"] for each in shown] == ["0:question", "0:answer", "2:question", "2:answer"]


def _prompt(session: Session) -> str:
    assert session.kept.toolbox is not None
    return str(session.kept.toolbox.calls["plan"].messages[0].text)


def _continues(session: Session) -> int | None:
    answer = session.view.turns[-1].answer
    assert answer is not None
    return answer["continues"]  # type: ignore[no-any-return]
