"""The hostile suite on the ways by which SQL comes: from the model, from the web chat's editor, from a program over MCP."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from mcp import Client

from agent.archive import Archive
from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.conversation import Conversation
from agent.profiles import load_profile
from agent.toolbox import AgentOptions, Toolbox
from app.mcp import server_of
from tests.tools.assault import DEADLINE_S, assault, prepare
from tools.database import open_database
from tools.result import Limits
from ui.house import House

LIMITS = Limits(deadline_s=DEADLINE_S, memory_limit_mb=256)


class Possessed(BaseChatModel):
    """Writes one SQL, whatever it is asked."""

    sql: str

    @property
    def _llm_type(self) -> str:
        return "possessed"

    def _generate(self, *args: Any, **more: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.sql))])

    def _stream(self, *args: Any, **more: Any) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content=self.sql))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "attacked").mkdir()
    return prepare(tmp_path / "attacked")


def test_a_possessed_model_does_no_harm(folder: Path) -> None:
    """The decoder's grammar would not even let most of this be written; here it is off."""
    options = AgentOptions(max_attempts=1, refine_empty=False, values=False, hints=False)
    with closing(open_database(folder / "people.sqlite", engine="sqlite")) as database:

        def run(sql: str) -> tuple[bool, str]:
            if "\ud800" in sql:
                return False, "no model says half characters"
            toolbox = Toolbox(database, Possessed(sql=sql), load_profile("compact"), options, LIMITS)
            answer = Conversation(toolbox).ask("What now?")
            return answer.error is None, f"{answer.answer} {answer.rows} {answer.error}"

        assert assault(run, "sqlite", folder) == []


def test_the_mcp_server_does_no_harm(folder: Path) -> None:
    database = open_database(folder / "people.sqlite", engine="sqlite", isolated=True)
    with (
        Assistant(database, ModelChoice(), limits=LIMITS) as assistant,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server_of(assistant))) as client,
    ):

        def run(sql: str) -> tuple[bool, str]:
            if "\ud800" in sql:
                return False, "JSON holds no half characters"
            result = portal.call(client.call_tool, "run_sql", {"sql": sql})
            return not result.is_error, str(result.content)

        problems = assault(run, "sqlite", folder)
    assert problems == []


def test_the_editor_of_the_web_chat_does_no_harm(folder: Path, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    house = House(ModelChoice(), archive, lambda choice: None, lambda: open_database(folder / "people.duckdb"))
    with closing(house):
        session = house.session("one", "eve")
        session.settings = replace(session.settings, deadline_s=DEADLINE_S)

        def run(sql: str) -> tuple[bool, str]:
            ran = session.run_sql(sql, 0)
            return ran.error is None, f"{ran.rows} {ran.error}"

        assert assault(run, "duckdb", folder) == []
