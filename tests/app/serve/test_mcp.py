"""The MCP server as MCP's own client sees it: in process, over HTTP, and as a program on stdio."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import duckdb
import httpx
import pytest
from mcp import Client, StdioServerParameters

import sqlagent
from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.context import AgentContext
from agent.prompts.profiles import load_profile
from app.serve.mcp import http_app, server_of
from tests.agent.conftest import ScriptedModel
from tests.app.serve.serving import serving
from tools.databases.database import Database

COUNT = "SELECT COUNT(*) FROM singer"


class Scripted:
    """In place of a loaded model: an agent that counts the singers."""

    def toolbox(self, database: Database, options: Any, limits: Any) -> AgentContext:
        return AgentContext(
            database, ScriptedModel(responses=["plan", COUNT]), load_profile("compact"), options, limits
        )


@pytest.fixture
def assistant(database: Database) -> Assistant:
    made = Assistant(database, ModelChoice())
    made._model = Scripted()  # type: ignore[assignment]
    return made


def _creates_a_table(statement: str) -> None:
    """The description was once no SQL: a comma stood before the closing bracket."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE singer (singer_id INTEGER PRIMARY KEY)")
        connection.execute(statement)
        assert connection.execute(
            "SELECT count(*) FROM duckdb_constraints() WHERE constraint_type = 'FOREIGN KEY'"
        ).fetchone() == (1,)


def test_the_server_names_its_version(assistant: Assistant) -> None:
    async def initialized() -> Any:
        async with Client(server_of(assistant)) as client:
            return client.server_info

    assert anyio.run(initialized).version == sqlagent.__version__


async def _tour(where: Any, asks: bool = True) -> None:
    """What an agent would do: look around, read, try to write, ask."""
    async with Client(where) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {"list_tables", "describe_table", "run_sql", "check_sql", "ask"}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        listed = await client.call_tool("list_tables", {})
        assert listed.structured_content == {
            "result": [{"table": "singer", "columns": 4, "rows": 3}, {"table": "concert", "columns": 4, "rows": 3}]
        }
        described = await client.call_tool("describe_table", {"table": "Concert"})
        _creates_a_table(described.content[0].text)  # type: ignore[union-attr]
        rows = await client.call_tool("run_sql", {"sql": "SELECT name FROM singer ORDER BY name"})
        assert rows.structured_content == {"columns": ["name"], "rows": [["Ada"], ["Bo"], ["Cy"]], "truncated": False}
        checked = await client.call_tool("check_sql", {"sql": "SELECT name FROM singer JOIN concert USING (singer_id)"})
        assert checked.structured_content and checked.structured_content["error"] is None
        assert "repeated_rows" in {each["kind"] for each in checked.structured_content["findings"]}
        for tool, arguments, says in (
            ("run_sql", {"sql": "DELETE FROM singer"}, "refused"),
            ("run_sql", {"sql": "SELECT nam FROM singer"}, "there is: name"),
            ("describe_table", {"table": "singers"}, "there is: singer"),
            ("ask", {"question": "  "}, "no question"),
        ):
            failed = await client.call_tool(tool, arguments)
            assert failed.is_error and says in failed.content[0].text  # type: ignore[union-attr]
        if asks:
            answer = await client.call_tool("ask", {"question": "How many singers are there?"})
            assert answer.structured_content and answer.structured_content["rows"] == [[3]]
            assert json.loads(answer.content[0].text)["sql"] == COUNT  # type: ignore[union-attr]


def test_in_process(assistant: Assistant) -> None:
    anyio.run(_tour, server_of(assistant))


def test_over_http(assistant: Assistant) -> None:
    with serving(http_app(server_of(assistant), None, "127.0.0.1")) as url:
        anyio.run(_tour, f"{url}/mcp")


def test_over_http_with_a_wrong_key(assistant: Assistant) -> None:
    with (
        serving(http_app(server_of(assistant), "secret", "127.0.0.1")) as url,
        pytest.raises(BaseExceptionGroup),
    ):
        anyio.run(_tour, f"{url}/mcp")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "evil.example"}, 400), ({"origin": "https://evil.example"}, 403), ({"content-type": "text/plain"}, 415)],
)
def test_web_pages_and_foreign_names_are_refused(assistant: Assistant, headers: dict[str, str], status: int) -> None:
    begin = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with serving(http_app(server_of(assistant), None, "127.0.0.1", ["db.example"])) as url:
        sent = {"content-type": "application/json"} | headers
        assert httpx.post(f"{url}/mcp", content=json.dumps(begin), headers=sent).status_code == status
        named = httpx.post(f"{url}/mcp", json=begin, headers={"host": "db.example"})
        assert named.status_code not in (400, 403, 415, 421) or "host" not in named.text.lower()


def test_on_stdio(singers: Path) -> None:
    """The program itself: anything printed to stdout would break the protocol."""
    arguments = ["-c", "from app.cli import main; main()", "mcp", "--db", str(singers), "--engine", "sqlite"]
    anyio.run(_tour, StdioServerParameters(command=sys.executable, args=arguments), False)


def test_a_conversation_goes_on_by_its_name(assistant: Assistant) -> None:
    async def talk() -> None:
        async with Client(server_of(assistant)) as client:
            first = await client.call_tool("ask", {"question": "How many singers are there?"})
            assert first.structured_content and first.structured_content["continues"] is None
            assert first.structured_content["confidence"] is None  # nobody calibrated this model
            assert first.structured_content["alternatives"] == [] and not first.structured_content["probably_wrong"]
            name = first.structured_content["conversation"]
            then = await client.call_tool("ask", {"question": "by country", "conversation": name})
            assert then.structured_content and then.structured_content["continues"] == 1
            assert sorted(then.structured_content["rows"]) == [["France", 2], ["Spain", 1]]
            unknown = await client.call_tool("ask", {"question": "by country", "conversation": "no such"})
            assert unknown.is_error and "not known" in unknown.content[0].text  # type: ignore[union-attr]

    anyio.run(talk)
