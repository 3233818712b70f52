"""The MCP server as MCP's own client sees it: in process, over HTTP, and as a program on stdio."""

import json
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import anyio
import duckdb
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import ElicitRequestParams, ElicitResult

import sqlagent
from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.calibration import Calibration
from agent.context import AgentContext
from agent.nodes import assess
from agent.prompts.profiles import load_profile
from app.serve.mcp import http_app, read_sources, server_of
from tests.agent.conftest import ScriptedModel
from tests.app.serve.serving import serving
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.result import OpenError

COUNT = "SELECT COUNT(*) FROM singer"


class Scripted:
    """In place of a loaded model: an agent that writes one query, and doubts it where there are `more` lines to write."""

    def __init__(self, sql: str = COUNT, *more: str) -> None:
        self._lines, self._doubts = ["plan", sql, *more], Calibration(-2.0, {}, 0.5) if more else None

    def toolbox(self, database: Database, options: Any, limits: Any) -> AgentContext:
        made = AgentContext(database, ScriptedModel(responses=self._lines), load_profile("compact"), options, limits)
        made.calibration = self._doubts
        return made


@pytest.fixture
def assistant(database: Database) -> Assistant:
    made = Assistant(database, ModelChoice())
    made._model = Scripted()  # type: ignore[assignment]
    return made


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Assistant]:
    """Two tables with an age, so that a question about the age alone is unclear."""
    (tmp_path / "guests.csv").write_text("guest_id,name,age\n1,Ada,31\n2,Bo,40\n", encoding="utf-8")
    (tmp_path / "guides.csv").write_text("guide_id,full_name,age\n1,Cy,50\n2,Di,60\n", encoding="utf-8")
    opened = open_database([tmp_path / "guests.csv", tmp_path / "guides.csv"])
    with Assistant(opened, ModelChoice(), model=Scripted("SELECT AVG(age) FROM guides")) as made:  # type: ignore[arg-type]
        yield made


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
        async with Client(server_of({"concerts": assistant})) as client:
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
    anyio.run(_tour, server_of({"concerts": assistant}))


def test_over_http(assistant: Assistant) -> None:
    with serving(http_app(server_of({"concerts": assistant}), None, "127.0.0.1")) as url:
        anyio.run(_tour, f"{url}/mcp")


def test_over_http_with_a_wrong_key(assistant: Assistant) -> None:
    with (
        serving(http_app(server_of({"concerts": assistant}), "secret", "127.0.0.1")) as url,
        pytest.raises(BaseExceptionGroup),
    ):
        anyio.run(_tour, f"{url}/mcp")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "evil.example"}, 400), ({"origin": "https://evil.example"}, 403), ({"content-type": "text/plain"}, 415)],
)
def test_web_pages_and_foreign_names_are_refused(assistant: Assistant, headers: dict[str, str], status: int) -> None:
    begin = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with serving(http_app(server_of({"concerts": assistant}), None, "127.0.0.1", ["db.example"])) as url:
        sent = {"content-type": "application/json"} | headers
        assert httpx.post(f"{url}/mcp", content=json.dumps(begin), headers=sent).status_code == status
        named = httpx.post(f"{url}/mcp", json=begin, headers={"host": "db.example"})
        assert named.status_code not in (400, 403, 415, 421) or "host" not in named.text.lower()


def test_on_stdio(singers: Path) -> None:
    """The program itself: anything printed to stdout would break the protocol."""
    arguments = ["-c", "from app.cli import main; main()", "mcp", "--db", str(singers), "--engine", "sqlite"]
    anyio.run(_tour, StdioServerParameters(command=sys.executable, args=arguments), False)


def test_three_commands_of_the_docs_lead_to_an_answer(tmp_path: Path) -> None:
    """What the documents give to a program's configuration is started as it does that, and answers with the shipped model."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "reference.md").read_text()
    commands = text.partition("it takes three commands")[2].partition("```\n")[2].partition("```")[0]
    install, add, asked = commands.splitlines()
    extra = install.partition("sqlagent-local[")[2].partition("]")[0]
    assert any(each.startswith("mcp") and extra in each for each in requires("sqlagent-local") or ())
    configuration = next(json.loads(line) for line in text.splitlines() if line.startswith('{"mcpServers"'))
    entry = configuration["mcpServers"]["shop"]
    command, *arguments = shlex.split(add.partition(" -- ")[2])
    assert [command, *arguments] == [entry["command"], *entry["args"]] and command == "sqlagent"
    data = example_database(tmp_path).rename(tmp_path / "shop.sqlite")
    words = [str(data) if each == "/path/to/shop.sqlite" else each for each in arguments]
    question = asked.partition("Ask shop: ")[2].partition('"')[0]

    async def answer() -> Any:
        start = ["-c", "from app.cli import main; main()", *words]
        async with Client(StdioServerParameters(command=sys.executable, args=start)) as client:
            return (await client.call_tool("ask", {"question": question})).structured_content

    assert anyio.run(answer)["answer"] == "82 customers."


def test_a_conversation_goes_on_by_its_name(assistant: Assistant) -> None:
    async def talk() -> None:
        async with Client(server_of({"concerts": assistant})) as client:
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


AGE = {"question": "What is the average age?"}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_person_is_asked_what_an_unclear_question_means(people: Assistant, mode: str) -> None:
    """By a form, once, in both ways that the protocol has had for that; the tool's answer is the one to what was chosen."""
    forms = list[ElicitRequestParams]()

    async def choose(_: Any, asked: ElicitRequestParams) -> ElicitResult:
        forms.append(asked)
        labels = asked.requested_schema["properties"]["meaning"]["enum"]  # type: ignore[union-attr]
        return ElicitResult(action="accept", content={"meaning": next(each for each in labels if "guide" in each)})

    async def asked() -> Any:
        with serving(http_app(server_of({"tours": people}), None, "127.0.0.1")) as url:
            async with Client(f"{url}/mcp", elicitation_callback=choose, mode=mode) as client:
                return await client.call_tool("ask", AGE)

    answer = anyio.run(asked)
    assert answer.structured_content["rows"] == [[55.0]] and answer.structured_content["question"] is None
    assert len(forms) == 1 and "age" in forms[0].message


def test_who_declines_to_choose_gets_the_question_as_it_stands(people: Assistant) -> None:
    async def decline(*_: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async def asked() -> Any:
        async with Client(server_of({"tours": people}), elicitation_callback=decline) as client:
            return await client.call_tool("ask", AGE)

    assert anyio.run(asked).structured_content["rows"] == [[55.0]]


def test_a_client_without_forms_gets_the_question_and_its_options(people: Assistant) -> None:
    """An unclear question was once an error without the evidence that settles it."""

    async def asked() -> None:
        async with Client(server_of({"tours": people})) as client:
            first = (await client.call_tool("ask", AGE)).structured_content
            assert first and first["sql"] is None and "age" in first["question"]["message"]
            option = next(each for each in first["question"]["options"] if "guide" in each["label"])
            chosen = (await client.call_tool("ask", AGE | {"evidence": option["evidence"]})).structured_content
            plain = (await client.call_tool("ask", AGE | {"ask_back": False})).structured_content
            assert chosen and plain and chosen["rows"] == plain["rows"] == [[55.0]]

    anyio.run(asked)


OLD = "SELECT COUNT(*) FROM singer WHERE age > 40"
DOUBTED = {"question": "How many singers are there?"}


@pytest.fixture
def doubting(database: Database, monkeypatch: pytest.MonkeyPatch) -> Assistant:
    """One plan of four is another one, and counts the old singers."""
    monkeypatch.setattr(assess, "OTHER_PLANS", 4)
    return Assistant(database, ModelChoice(), model=Scripted(COUNT, *["plan"] * 3, "other", OLD))  # type: ignore[arg-type]


def test_the_person_is_asked_which_reading_of_a_doubtful_answer_is_meant(doubting: Assistant) -> None:
    forms = list[ElicitRequestParams]()

    async def choose(_: Any, asked: ElicitRequestParams) -> ElicitResult:
        forms.append(asked)
        return ElicitResult(action="accept", content={"meaning": "only where age is more than 40 → 1"})

    async def asked() -> Any:
        async with Client(server_of({"concerts": doubting}), elicitation_callback=choose) as client:
            return (await client.call_tool("ask", DOUBTED)).structured_content

    answer = anyio.run(asked)
    assert (answer["rows"], answer["sql"], answer["question"]) == ([[1]], OLD, None)
    assert [form.message for form in forms] == ["Which do you mean: all rows, or only where age is more than 40?"]
    shown = forms[0].requested_schema["properties"]["meaning"]["enum"]  # type: ignore[union-attr]
    assert shown == ["all rows → 3", "only where age is more than 40 → 1"]


def test_a_client_without_forms_gets_the_readings_with_the_doubtful_answer(doubting: Assistant) -> None:
    async def asked() -> None:
        async with Client(server_of({"concerts": doubting})) as client:
            first = (await client.call_tool("ask", DOUBTED)).structured_content
            assert first and first["rows"] == [[3]] and first["probably_wrong"]
            own, other = first["question"]["options"]
            assert (own["sql"], own["result"], other["result"]) == (COUNT, "3", "1")
            rows = await client.call_tool("run_sql", {"sql": other["sql"]})
            assert rows.structured_content and rows.structured_content["rows"] == [[1]]
            plain = (await client.call_tool("ask", DOUBTED | {"ask_back": False})).structured_content
            assert plain and plain["question"] is None and plain["rows"] == [[3]]

    anyio.run(asked)


def test_several_databases_by_name(assistant: Assistant, people: Assistant) -> None:
    async def tour() -> None:
        async with Client(server_of({"concerts": assistant, "the tours": people})) as client:
            assert client.instructions and "concerts, the tours" in client.instructions
            listed = await client.call_tool("list_tables", {"database": "the tours"})
            assert {each["table"] for each in listed.structured_content["result"]} == {"guests", "guides"}  # type: ignore[index]
            for database, says in (("", "name the database"), ("sales", "no database sales")):
                failed = await client.call_tool("run_sql", {"sql": "SELECT 1", "database": database})
                assert failed.is_error and says in failed.content[0].text  # type: ignore[union-attr]
            answer = await client.call_tool("ask", {"question": "How many singers are there?", "database": "concerts"})
            talk = answer.structured_content["conversation"]  # type: ignore[index]
            then = await client.call_tool("ask", {"question": "by country", "conversation": talk})
            assert then.structured_content["continues"] == 1  # type: ignore[index]
            other = await client.call_tool("ask", AGE | {"conversation": talk, "database": "the tours"})
            assert other.is_error and "not known" in other.content[0].text  # type: ignore[union-attr]
            found = {str(each.uri): each for each in (await client.list_resources()).resources}
            assert set(found) == {"schema://concerts", "schema://the%20tours"}
            schema = (await client.read_resource("schema://concerts")).contents[0].text  # type: ignore[union-attr]
            assert "CREATE TABLE" in schema and "concert" in schema

    anyio.run(tour)


def test_every_tool_says_the_form_of_what_it_gives(assistant: Assistant) -> None:
    async def tools() -> Any:
        async with Client(server_of({"concerts": assistant})) as client:
            return (await client.list_tools()).tools

    forms = {tool.name: tool.output_schema for tool in anyio.run(tools)}
    assert all(forms.values())
    assert {"confidence", "alternatives", "question"} <= set(forms["ask"]["properties"])
    assert set(forms["run_sql"]["properties"]) == {"columns", "rows", "truncated"}


def test_several_databases_on_stdio_have_rights_of_their_own(singers: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(singers.read_bytes())
    file = tmp_path / "databases.toml"
    file.write_text(f'[open]\ndb = "copy.sqlite"\n[kept]\ndb = "{singers}"\nhide = ["singer.age"]\n', encoding="utf-8")
    arguments = ["-c", "from app.cli import main; main()", "mcp", "--databases", str(file)]

    async def tour() -> None:
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
            ages = {"sql": "SELECT max(age) AS age FROM singer"}
            assert (await client.call_tool("run_sql", ages | {"database": "open"})).structured_content["rows"] == [[45]]  # type: ignore[index]
            assert (await client.call_tool("run_sql", ages | {"database": "kept"})).is_error
            kept = (await client.read_resource("schema://kept")).contents[0].text  # type: ignore[union-attr]
            assert "age" not in kept and "country" in kept

    anyio.run(tour)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no database"),
        ("[shop]\ntables = []\n", "db: Field required"),
        ('[shop]\ndb = "a"\nhidden = []\n', "hidden: Extra inputs"),
        ("[shop", "cannot read"),
    ],
)
def test_a_file_of_databases_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "databases.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(OpenError, match=says):
        read_sources(file)
