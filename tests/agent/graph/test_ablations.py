"""What can be switched off for a measurement is really off, and nothing else changes."""

from typing import Any

from langchain_core.messages import BaseMessage

from agent.ask_model import shown
from agent.conversation import Conversation
from tests.agent.conftest import ScriptedModel, Talk
from tools.databases.database import Database
from tools.linking.link_schema import link

PLAN = "singer.country | SELECT COUNT(*) FROM _ WHERE _"
COUNT = "SELECT COUNT(*) FROM singer WHERE country = 'France'"
WRONG = "SELECT T2.country FROM singer AS T1 JOIN concert AS T2 ON T1.singer_id = T2.singer_id WHERE T2.title = 'Up'"
QUESTION = "Which country do singers from France come from?"


class _Listening(ScriptedModel):
    """Keeps the first prompt."""

    first: str = ""

    def _stream(self, messages: list[BaseMessage], *args: Any, **kw: Any) -> Any:
        self.first = self.first or str(messages[0].text)
        return super()._stream(messages, *args, **kw)


def _listen(talk: Talk, **options: Any) -> tuple[Conversation, _Listening]:
    conversation, model = talk(**options), _Listening(responses=[PLAN, COUNT])
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
    answer = talk(PLAN, WRONG, right, repair=False).ask("Where does the singer of Up come from?")
    assert [step["name"] for step in answer.steps].count("refine") == 1
    assert answer.rows == [["Spain"]]


def test_a_remembered_turn_is_shown_as_one_that_was_answered(talk: Talk) -> None:
    """Guards the follow-ups that are measured behind gold SQL."""
    conversation, model = _listen(talk)
    conversation.remember("How many singers?", "SELECT COUNT(*) FROM singer")
    assert conversation.ask("Only the young ones").rows == [[2]]
    assert "history: How many singers? => SELECT COUNT(*) FROM singer\n" in model.first
