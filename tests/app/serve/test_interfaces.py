"""The examples of docs/reference.md run, and each database URL there leads to its driver.

A node that fails, as a person or program meets it: command line, its chat, MCP, HTTP and the web chat's session.

The event stream of every node: `tests/agent/graph/test_failures.py`. Before, `ask` ended in 128 lines of traceback, MCP said
"Error executing tool ask" alone, and HTTP "stopped".

`/ask`: questions over HTTP, whole or event by event, behind the same doors as the model.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from runpy import run_path
from socket import socket
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client
from starlette.applications import Starlette
from starlette.testclient import TestClient

from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.context import AgentContext
from agent.observe.events import Answered
from agent.prompts.profiles import load_profile
from app.serve.listening import behind_doors
from app.serve.mcp import server_of
from app.serve.questions import LONGEST_QUESTION, check_route, question_route
from app.serve.serve import app_of
from app.shared import exit_codes
from decoding.methods.registry import METHODS
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams
from tests.agent.conftest import ScriptedModel
from tests.agent.planted import planted_node
from tests.app.serve.serving import serving
from tests.app.serve.test_mcp import Scripted as ScriptedOfFailingNodes
from tests.app.test_cli import COUNT, run, script, singer
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.ui.workspaces import scripted_workspace
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.databases.sqlalchemy_database import open_url
from tools.result import OpenError

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "reference.md").read_text()
SECTIONS = re.split(r"^#{2,3} (.+)\n", TEXT, flags=re.MULTILINE)[1:]
CODE = {
    title: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for title, text in zip(SECTIONS[::2], SECTIONS[1::2], strict=True)
}
EXAMPLES = {title: blocks[0] for title, blocks in CODE.items() if blocks}
URLS = re.findall(r"^(\w[\w+]*://\S+) ", TEXT, re.MULTILINE)


class Scripted:
    """In place of a loaded model: for each question it says a plan and the next SQL."""

    def __init__(self, *queries: str) -> None:
        self._said = [line for sql in queries for line in ("plan", sql)]

    def toolbox(self, database: Database, options: Any, limits: Any) -> AgentContext:
        return AgentContext(database, ScriptedModel(responses=self._said), load_profile("compact"), options, limits)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE customer (name TEXT, country TEXT, total REAL)")
        connection.execute("INSERT INTO customer VALUES ('Ada', 'Germany', 3), ('Bo', 'France', 4)")
    connection.close()
    return tmp_path / "shop.sqlite"


def test_python(shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(shop.parent)
    monkeypatch.setattr(
        "agent.assistant.any_model", lambda choice: Scripted("SELECT count(*) AS customers FROM customer")
    )
    exec(EXAMPLES["Python"], {})
    assert capsys.readouterr().out == "2 customers. SELECT count(*) AS customers FROM customer [[2]]\n"


def test_conversations(shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    highest = "SELECT name FROM customer ORDER BY total DESC LIMIT 1"
    model = Scripted("SELECT COUNT(*) FROM customer WHERE country = 'Germany'", highest, highest.replace("DESC", "ASC"))
    monkeypatch.chdir(shop.parent)
    monkeypatch.setattr("agent.assistant.any_model", lambda choice: model)
    exec(EXAMPLES["Conversations"], {})
    assert capsys.readouterr().out.splitlines() == [
        "[[1]] None",
        "SELECT COUNT(*) FROM customer WHERE country = 'France' [[1]] 1",
        "['relate', 'link', 'adapt', 'check', 'execute', 'answer']",
        "[['Bo']] None",
        "[['Ada']] 3",
        "Started over: the next question is taken by itself.",
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny"))


def _on(tiny: str, example: str) -> str:
    """The example with the tiny model on the processor in place of the embedded one."""
    return EXAMPLES[example].replace('load_text_decoder("embedded"', f'load_text_decoder({tiny!r}, device="cpu"')


def test_the_decoder_by_itself(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(_on(tiny, "The decoder by itself"), {})
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"plain: \d+ rounds, 1\.00 tokens in each", lines[0])
    assert re.fullmatch(r"prompt_lookup: \d+ rounds, \d\.\d\d tokens in each", lines[1])


def test_a_method_of_ones_own(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a module, for a method is found by its module's name; the table is put back, for others read it."""
    monkeypatch.setitem(METHODS, "again", "own_method:Again")
    (tmp_path / "own_method.py").write_text(_on(tiny, "A method of one's own"))
    run_path(str(tmp_path / "own_method.py"), run_name="own_method")
    told = re.findall(r"temperature (\S+): (\d+) rounds, (\d+) with guesses", capsys.readouterr().out)
    assert [temperature for temperature, _, _ in told] == ["0.0", "0.8"]
    assert all(int(guessing) <= int(plain) for _, plain, guessing in told)


def test_served_and_called_from_python(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    exec(_on(tiny, "Served and called from Python").replace("8000", str(port)), {})
    assert re.search(r"^\d+ tokens in \d+ forwards$", capsys.readouterr().out, re.MULTILINE)


def test_mcp(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        Assistant(open_database(shop), ModelChoice()) as assistant,
        serving(server_of({"shop": assistant}).streamable_http_app()) as url,
    ):
        exec(EXAMPLES["Model Context Protocol"].replace("http://127.0.0.1:8001", url), {})
    assert capsys.readouterr().out == "{'columns': ['customers'], 'rows': [[2]], 'truncated': False}\n"


def test_chat_completions(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    decoder = load_text_decoder(tiny, dtype="fp32", device="cpu")
    with serving(app_of(decoder, SamplingParams(), 2)) as url:
        exec(EXAMPLES["OpenAI's chat completions"].replace("http://127.0.0.1:8000", url), {})
    assert capsys.readouterr().out.endswith(" 1.0\n")


def test_every_example_and_url_is_found() -> None:
    assert all(len(blocks) <= 1 for blocks in CODE.values())
    assert len(EXAMPLES) == TEXT.count("```python") == 7 and len(URLS) == 9


@pytest.mark.parametrize("url", URLS[3:])
def test_a_url_leads_to_its_driver(url: str) -> None:
    """None of these drivers is among the tests' packages; the error names the package, and never the password."""
    with pytest.raises(OpenError, match="pip install") as caught:
        open_url(url)
    package = re.search(re.escape(url) + r".*pip install '?([^'\s]+)", TEXT)
    assert package and package[1] in str(caught.value)
    assert "password" not in str(caught.value)


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
    monkeypatch.setattr("app.ask.ask.print_schema", fails)
    said = run("chat", "--db", singer, "--model", tiny, stdin="/schema\n/sql SELECT 7 AS seven\n")
    assert said.exit_code == exit_codes.OK and "seven" in said.stdout
    _is_one_line(said.stderr)


@pytest.fixture
def assistant(database: Database) -> Assistant:
    return Assistant(database, ModelChoice(), model=ScriptedOfFailingNodes())  # type: ignore[arg-type]


@pytest.mark.parametrize("node", NODES)
def test_mcp_says_what_failed(assistant: Assistant, node: str) -> None:
    async def asked() -> Any:
        async with Client(server_of({"shop": assistant})) as client:
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
        async with Client(server_of({"shop": assistant})) as client:
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


HEADERS = {"authorization": "Bearer secret"}
COUNTOfQuestions = "SELECT COUNT(*) FROM singer"


class ScriptedOfQuestions:
    """In place of a loaded model: every conversation counts the singers, then those from France."""

    def toolbox(self, database: Database, options: Any, limits: Any) -> AgentContext:
        lines = ["plan", COUNTOfQuestions, "plan", f"{COUNTOfQuestions} WHERE country = 'France'"]
        return AgentContext(database, ScriptedModel(responses=lines), load_profile("compact"), options, limits)


@pytest.fixture(scope="module")
def tiny_questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny"))


@pytest.fixture
def client(database: Database, tiny_questions: str) -> Iterator[httpx.Client]:
    assistant = Assistant(database, ModelChoice(), model=ScriptedOfQuestions())  # type: ignore[arg-type]
    decoder = load_text_decoder(tiny_questions, dtype="fp32", device="cpu")
    app = app_of(decoder, SamplingParams(), 8, [question_route(assistant)])
    with (
        serving(behind_doors(app, "secret", "127.0.0.1")) as url,
        httpx.Client(base_url=url, headers=HEADERS) as client,
    ):
        yield client


def test_a_question_and_its_conversation(client: httpx.Client) -> None:
    first = client.post("/ask", json={"question": "How many singers are there?"}).json()
    assert first["rows"] == [[3]]
    assert first["answer"] == "3 singers."
    asked = {"question": "And from France?", "conversation": first["conversation"]}
    second = client.post("/ask", json=asked).json()
    assert second["rows"] == [[2]]
    assert second["continues"] == 1
    assert client.get("/v1/models").status_code == 200


def test_events_as_they_happen(client: httpx.Client) -> None:
    with client.stream("POST", "/ask", json={"question": "How many singers are there?", "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["conversation", "asked"]
    assert kinds[-1] == "answered"
    assert {"started", "wrote", "finished"} <= set(kinds)
    assert events[-1]["answer"]["rows"] == [[3]]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"question": " "}, 400),
        ({}, 400),
        ({"question": "x" * (LONGEST_QUESTION + 1)}, 400),
        ({"question": "How many?", "sql": "DROP TABLE singer"}, 400),
        ({"question": "How many?", "conversation": "nobody's"}, 404),
    ],
)
def test_what_cannot_be_asked_is_said(client: httpx.Client, body: dict[str, Any], status: int) -> None:
    response = client.post("/ask", json=body)
    assert response.status_code == status
    assert response.json()["error"]["message"]


def test_sql_is_checked_over_http(assistant: Assistant) -> None:
    """What is wrong with the SQL is the answer, and what is wrong with the request is an error."""
    client = TestClient(Starlette(routes=[check_route(assistant)]))
    found = client.post("/check", json={"sql": "SELECT name FROM singer WHERE country = NULL"}).json()
    assert found["reads"] == [{"table": "singer", "columns": ["name", "country"]}]
    assert [each["kind"] for each in found["findings"] if each["severity"] == "warning"] == ["null_comparison"]
    assert client.post("/check", json={"sql": "DROP TABLE singer"}).json()["error"]["kind"] == "refused"
    refused = client.post("/check", json={"statement": "SELECT 1"})
    assert refused.status_code == 400 and "sql" in refused.json()["error"]["message"]


def test_the_doors_are_the_models(client: httpx.Client) -> None:
    asked = {"question": "How many?"}
    assert client.post("/ask", json=asked, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert client.post("/ask", json=asked, headers={"host": "evil.example"}).status_code == 400
    assert client.post("/ask", json=asked, headers={"origin": "http://evil.example"}).status_code in (400, 403)
    assert client.post("/ask", content=json.dumps(asked), headers={"content-type": "text/plain"}).status_code == 415


def test_a_request_to_change_data_is_refused(client: httpx.Client) -> None:
    answer = client.post("/ask", json={"question": "Delete all singers"}).json()
    assert answer["error"]["kind"] == "refused"
    assert answer["rows"] == []
