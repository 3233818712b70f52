"""Guards asking back: only askers who can choose are offered the meanings of an unclear question, and a choice settles it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation, records
from agent.observe.events import Answered, Unclear, from_json, to_json
from agent.prompts.profiles import load_profile
from app.ask.ask import follow
from app.shared.process import MachineTurn
from tests.agent.conftest import ScriptedModel
from tools.databases.database import Database
from tools.databases.open_database import open_database

QUESTION, BAND = "How many are called Home?", "Home refers to artists.name = 'Home'"
COUNT = "SELECT COUNT(*) FROM artists WHERE name = 'Home'"


@pytest.fixture
def music(tmp_path: Path) -> Iterator[Database]:
    """`Home` is an artist and an album."""
    (tmp_path / "artists.csv").write_text("artist_id,name\n1,Home\n2,Ada\n")
    (tmp_path / "albums.csv").write_text("album_id,title,artist_id\n1,Home,2\n2,Away,1\n")
    opened = open_database([tmp_path / "artists.csv", tmp_path / "albums.csv"])
    yield opened
    opened.close()


def talk(database: Database, *lines: str, clarify: bool = True) -> Conversation:
    model = ScriptedModel(responses=list(lines))
    return Conversation(AgentContext(database, model, load_profile("compact"), AgentOptions(clarify=clarify)))


def test_an_unclear_question_is_asked_back_before_any_model_call(music: Database) -> None:
    conversation = talk(music)
    told = list(records(conversation, QUESTION))
    (unclear,) = (event for event in told if isinstance(event, Unclear))
    assert unclear == Unclear(
        "Home", {"the artist's name": BAND, "the album's title": "Home refers to albums.title = 'Home'"}
    )
    assert from_json(to_json(unclear)) == unclear
    assert isinstance(told[-1], Answered)
    error = told[-1].answer["error"]
    assert (error["kind"], error["candidates"]) == ("unclear", list(unclear.options))
    assert error["message"] == "“Home” as the artist's name, or the album's title?"
    assert not conversation._graph.get_state(conversation._config).values.get("turns")


def test_the_choice_settles_it(music: Database) -> None:
    conversation = talk(music, "artists: name", COUNT)
    conversation.ask(QUESTION)
    answer = conversation.ask(QUESTION, BAND)
    assert answer.rows == [[1]]
    prompt = str(conversation.toolbox.calls["generate"].messages[0].text)
    assert f"evidence: {BAND}\n" in prompt
    assert "values: artists.name = 'Home'\n" in prompt, "the other meaning is no longer offered to the model"


@pytest.mark.parametrize(("typed", "evidence", "again"), [("1", BAND, True), ("3", "", False)])
def test_on_a_terminal_a_number_is_typed(
    music: Database, monkeypatch: pytest.MonkeyPatch, typed: str, evidence: str, again: bool
) -> None:
    monkeypatch.setattr("builtins.input", lambda *prompt: typed)
    conversation = talk(music, "artists: name", COUNT)
    assert follow(MachineTurn(), conversation, QUESTION)["rows"] == [[1]]
    lines = str(conversation.toolbox.calls["generate"].messages[0].text).splitlines()
    assert [line for line in lines if line.startswith("evidence:")] == ([f"evidence: {evidence}"] if evidence else [])
    assert conversation.toolbox.options.clarify == again


def test_who_cannot_choose_is_never_asked(music: Database) -> None:
    answer = talk(music, "artists: name", COUNT, clarify=False).ask(QUESTION)
    assert answer.error is None
    assert "clarify" not in [step["name"] for step in answer.steps]


def test_a_clear_question_goes_on(music: Database) -> None:
    answer = talk(music, "artists: name", COUNT).ask("How many artists are called Ada?")
    assert [step["name"] for step in answer.steps][:3] == ["link", "clarify", "plan"]
    assert answer.error is None
