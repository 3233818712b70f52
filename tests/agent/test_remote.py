"""A model behind an endpoint: what it is asked with, and options that it could not follow are refused, never ignored."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from agent.assemble import ModelChoice, OptionRefused, RemoteModel, any_model
from agent.context import AgentOptions
from agent.conversation import Conversation, Retry
from app.shared.exit_codes import USAGE, plain_errors
from tools.databases.database import Database

NOWHERE = "openai:http://127.0.0.1:9/v1#gpt"


class Endpoint(BaseChatModel):
    """Answers every step with SQL, and keeps the options of each call."""

    asked: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "endpoint"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        self.asked.append(options)
        plan = f"plan: singer: name | SELECT {len(self.asked)}"
        text = plan if len(messages) == 2 else "```sql\nSELECT COUNT(*) FROM singer\n```"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        said = self._generate(messages, stop, run_manager, **options).generations[0].message.text
        yield ChatGenerationChunk(message=AIMessageChunk(said))


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"decoder": "plain"}, "--decoder"),
        ({"decoder_options": {"block_size": 8}}, "-o"),
        ({"dtype": "int8", "device": "cpu"}, "--dtype, --device"),
        ({"adapter": "none"}, "--adapter"),
    ],
)
def test_options_of_models_here_are_refused(option: dict[str, Any], named: str) -> None:
    """Before the endpoint is asked: nothing listens there."""
    with pytest.raises(OptionRefused, match=f"leave out {named}$"):
        any_model(ModelChoice(model=NOWHERE, **option))


def test_the_command_line_calls_it_wrong_usage() -> None:
    with pytest.raises(typer.Exit) as caught, plain_errors():
        any_model(ModelChoice(model=NOWHERE, decoder="plain"))
    assert caught.value.exit_code == USAGE


def test_a_race_is_refused(database: Database) -> None:
    model = RemoteModel(ModelChoice(model=NOWHERE), Endpoint())
    with pytest.raises(OptionRefused, match="--race"):
        model.toolbox(database, AgentOptions(race=True))


def test_further_tries_are_drawn_and_the_first_is_greedy(database: Database) -> None:
    endpoint = Endpoint()
    talk = Conversation(
        RemoteModel(ModelChoice(model=NOWHERE), endpoint).toolbox(database, AgentOptions(max_attempts=1))
    )
    refused = talk.ask("How many singers?").sql
    assert refused and not any("temperature" in each for each in endpoint.asked)
    endpoint.asked.clear()
    talk.ask("How many singers?", again=Retry(refused=(refused,)))
    given = [each.get("temperature") for each in endpoint.asked]
    assert given[:2] == [None, None] and given[2:6] == [0.0, 0.8, 0.8, 0.8]
