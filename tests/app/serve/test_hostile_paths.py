"""The hostile suite on the ways by which SQL comes, on four engines: the model, the web chat's editor, a program over MCP."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
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
from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from agent.prompts.compact import Compact
from app.serve.mcp import server_of
from tests.agent.conftest import OwnDialect
from tests.tools.attacks.assault import DEADLINE_S, Run, assault, prepare
from tests.tools.attacks.attacked import attacked
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits
from ui.session.workspace import Workspace


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


@dataclass(frozen=True, slots=True)
class Place:
    """What is attacked. `state`: what must stay as it is, besides the folder's files."""

    dialect: str
    folder: Path
    source: str | Path
    limits: Limits = Limits(deadline_s=DEADLINE_S, memory_limit_mb=256)
    state: Callable[[], str] = str

    def opened(self, isolated: bool = False) -> Database:
        engine = "sqlite" if self.dialect == "sqlite" else "auto"
        return open_database(self.source, engine=engine, isolated=isolated)

    def assault(self, run: Run, every_twin: bool = True) -> list[str]:
        before = self.state()
        problems = assault(run, self.dialect, self.folder, every_twin)
        return problems if self.state() == before else [*problems, "the server is not as it was"]


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    kind, _, user = request.param.partition(" as ")
    if user:
        with attacked(request.getfixturevalue(kind)) as found:
            yield Place(found.dialect, found.folder, found.url(user), Limits(), found.state)
    else:
        folder = prepare(tmp_path_factory.mktemp("attacked"))
        yield Place(kind, folder, folder / f"people.{kind}")


EVERYWHERE = ["duckdb", "sqlite", "postgresql as superuser", "mariadb as superuser"]


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_a_possessed_model_does_no_harm(place: Place) -> None:
    """The decoder's grammar would not even let most of this be written; here it is off."""
    assert possessed(place, OwnDialect()) == []


@pytest.mark.parametrize("place", ["duckdb"], indirect=True)
def test_a_possessed_model_does_no_harm_by_what_is_translated(place: Place) -> None:
    """What is innocent may be refused: DuckDB's lists are names to SQLite."""
    assert [each for each in possessed(place, Compact()) if not each.startswith("refused the innocent")] == []


def possessed(place: Place, profile: Compact) -> list[str]:
    """What goes wrong where a model says every hostile statement, and innocent ones like it."""
    options = AgentOptions(max_attempts=1, values=False, hints=False)
    with closing(place.opened()) as database:
        model = Possessed(sql="")
        conversation = Conversation(AgentContext(database, model, profile, options, place.limits))

        def run(sql: str) -> tuple[bool, str]:
            if "\ud800" in sql:
                return False, "no model says half characters"
            model.sql = sql
            conversation._config["configurable"]["thread_id"] = (
                sql  # another conversation; its graph is the expensive part
            )
            answer = conversation.ask("What now?")
            return answer.error is None, f"{answer.answer} {answer.rows} {answer.error}"

        return place.assault(run, every_twin=False)


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_the_mcp_server_does_no_harm(place: Place) -> None:
    with (
        Assistant(place.opened(isolated=True), ModelChoice(), limits=place.limits) as assistant,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server_of({"shop": assistant}))) as client,
    ):

        def run(sql: str) -> tuple[bool, str]:
            if "\ud800" in sql:
                return False, "JSON holds no half characters"
            result = portal.call(client.call_tool, "run_sql", {"sql": sql})
            return not result.is_error, str(result.content)

        run("SELECT 1")  # starts the process of the queries
        problems = place.assault(run)
    assert problems == []


@pytest.mark.parametrize("place", [*EVERYWHERE, "postgresql as reader", "mariadb as reader"], indirect=True)
def test_the_editor_of_the_web_chat_does_no_harm(place: Place, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    with closing(Workspace(ModelChoice(), archive, lambda choice: None, place.opened)) as workspace:
        session = workspace.session("one", "eve")
        session.settings = replace(session.settings, deadline_s=place.limits.deadline_s)

        def run(sql: str) -> tuple[bool, str]:
            ran = session.run_sql(sql, 0)
            return ran.error is None, f"{ran.rows} {ran.error}"

        assert place.assault(run) == []
