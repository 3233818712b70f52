"""A node that fails, as a person or program meets it: command line, its chat, MCP, HTTP and the web chat's session.

The event stream of every node: `tests/agent/graph/test_failures.py`. Before, `ask` ended in 128 lines of traceback, MCP said
"Error executing tool ask" alone, and HTTP "stopped".
"""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from starlette.applications import Starlette
from starlette.testclient import TestClient

from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.observe.events import Answered
from app.serve.mcp import server_of
from app.serve.questions import question_route
from app.shared import exit_codes
from tests.agent.planted import planted_node
from tests.app.serve.test_mcp import Scripted
from tests.app.test_cli import COUNT, run, script, singer, tiny
from tests.ui.workspaces import scripted_workspace
from tools.databases.database import Database

__all__ = ["script", "singer", "tiny"]
QUESTION = "How many are from France?"
NODES = ("plan", "answer")  # before there are rows, and after
PLANTED = "AttributeError: 'Datetime' object has no attribute 'x'"


def _error() -> AttributeError:
    return AttributeError("'Datetime' object has no attribute 'x'")


def _is_one_line(said: str) -> None:
    assert PLANTED in said and "Traceback" not in said and said.strip().count("\n") == 0, said


def test_the_command_line_says_it_and_ends_with_1(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    with planted_node("plan", _error()):
        plain = run("ask", QUESTION, "--db", singer, "--model", tiny)
    assert (plain.exit_code, plain.stdout) == (exit_codes.FAILED, "")
    _is_one_line(plain.stderr)
    with planted_node("plan", _error()):
        as_json = run("ask", QUESTION, "--db", singer, "--model", tiny, "--json")
    assert as_json.exit_code == exit_codes.FAILED
    assert json.loads(as_json.stdout)["error"]["kind"] == "failure"


def test_the_command_line_keeps_the_rows(tiny: str, singer: str, script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    with planted_node("answer", _error()):
        found = run("ask", QUESTION, "--db", singer, "--model", tiny, "--json")
    answer = json.loads(found.stdout)
    assert (found.exit_code, answer["rows"]) == (exit_codes.OK, [[2]])
    _is_one_line(answer["answer"])
    script("plan", COUNT)
    unwritten = run("ask", QUESTION, "--db", singer, "--model", tiny, "--out", str(tmp_path / "no" / "folder.csv"))
    assert unwritten.stdout.startswith("2 singers.") and unwritten.exit_code == exit_codes.USAGE
    assert "cannot write" in unwritten.stderr


def test_the_chat_goes_on(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    script("plan", COUNT)
    with planted_node("link", _error()):
        said = run("chat", "--db", singer, "--model", tiny, stdin=f"{QUESTION}\n{QUESTION}\n")
    assert said.exit_code == exit_codes.OK
    assert said.stdout.count(PLANTED) == 1 and "2 singers." in said.stdout and "Traceback" not in said.output


def test_a_command_of_the_chat_that_fails_does_not_end_it(
    tiny: str,
    singer: str,
    script,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    def fails(*_: object) -> None:
        raise _error()

    script()
    monkeypatch.setattr("app.ask.chat_commands.print_schema", fails)
    said = run("chat", "--db", singer, "--model", tiny, stdin="/schema\n/sql SELECT 7 AS seven\n")
    assert said.exit_code == exit_codes.OK and "seven" in said.stdout
    _is_one_line(said.stderr)


@pytest.fixture
def assistant(database: Database) -> Assistant:
    return Assistant(database, ModelChoice(), model=Scripted())  # type: ignore[arg-type]


@pytest.mark.parametrize("node", NODES)
def test_mcp_says_what_failed(assistant: Assistant, node: str) -> None:
    async def asked() -> Any:
        async with Client(server_of(assistant)) as client:
            return await client.call_tool("ask", {"question": "How many singers are there?"})

    with planted_node(node, _error()):
        result = anyio.run(asked)
    _is_one_line(result.content[0].text if node == "plan" else result.structured_content["answer"])
    assert result.is_error is (node == "plan")
    assert node == "plan" or result.structured_content["rows"] == [[3]]


def test_mcp_says_why_a_tool_failed(assistant: Assistant, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise _error()

    async def asked(tool: str, **arguments: str) -> str:
        async with Client(server_of(assistant)) as client:
            return (await client.call_tool(tool, arguments)).content[0].text  # type: ignore[union-attr]

    monkeypatch.setattr(assistant, "schema", fails)
    _is_one_line(anyio.run(lambda: asked("list_tables")))
    monkeypatch.setattr(assistant, "conversation", fails)
    _is_one_line(anyio.run(lambda: asked("ask", question="How many?")))


@pytest.mark.parametrize("node", NODES)
def test_http_says_what_failed(assistant: Assistant, node: str) -> None:
    client = TestClient(Starlette(routes=[question_route(assistant)]))
    with planted_node(node, _error()):
        answer = client.post("/ask", json={"question": "How many singers are there?"}).json()
    _is_one_line(answer["answer"])
    assert answer["rows"] == ([] if node == "plan" else [[3]])
    assert (answer["error"] or {}).get("kind") == ("failure" if node == "plan" else None)
    with planted_node(node, _error()):
        told = client.post("/ask", json={"question": "How many singers are there?", "stream": True}).text
    assert json.loads(told.strip().splitlines()[-1].removeprefix("data: "))["event"] == "answered"


@pytest.mark.parametrize("node", NODES)
def test_the_web_chat_gets_an_answer(node: str, tmp_path: Path) -> None:
    question = "How many albums?"
    with (
        planted_node(node, _error()),
        closing(scripted_workspace(tmp_path, {question: "SELECT COUNT(*) FROM albums"})) as workspace,
    ):
        session = workspace.session("one", "ada")
        *_, last = session.ask(question)
        assert isinstance(last, Answered)
        _is_one_line(last.answer["answer"])
        assert last.answer["rows"] == ([] if node == "plan" else [[4]])
        list(session.ask(question))
        assert session.view.turns[-1].answer is not None and session.view.turns[-1].answer["rows"] == [[4]]
