"""A larger model for what the small one is not sure of: a real endpoint on this machine that says what the test wants."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from agent.assemble import ModelChoice, OptionRefused, any_model, load_model
from agent.assistant import Assistant
from agent.calibration import Calibration, Weight
from agent.context import AgentContext, Larger
from agent.conversation import Answer, Conversation
from agent.observe.audit import AuditLog, Trail, Wanted
from agent.observe.events import Answered, from_json, to_json
from agent.prompts.profiles import plan_from_json
from app.cli import app
from app.serve.mcp import server_of
from decoding.errors import ModelUnavailable
from tests.agent.conftest import Talk
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database

UNSURE = Calibration(-2.0, {"empty": Weight(0.0, 1.0, -0.1)}, 0.5, answer_from={"0.95": 0.9})
SURE = Calibration(4.0, {"empty": Weight(0.0, 1.0, -0.1)}, 0.5, answer_from={"0.95": 0.9})
QUESTION, PLAN = "Which singers are from Sweden?", "singer: name | SELECT _ FROM _ WHERE _"
SMALL, LARGE = "SELECT name FROM singer WHERE country = 'Sweden'", "SELECT name FROM singer WHERE country = 'Spain'"


@dataclass
class Big:
    """An endpoint of a model called big. It says its lines in order, and keeps what it was asked; `None` is a failure."""

    lines: list[str | None] = field(default_factory=list)
    asked: list[list[dict[str, str]]] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/v1/models", self.models), Route("/v1/chat/completions", self.chat, methods=["POST"])]
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [{"id": "big", "object": "model", "created": 0, "owned_by": "x"}]}
        )

    async def chat(self, request: Request) -> Response:
        self.asked.append((await request.json())["messages"])
        line = self.lines[min(len(self.asked), len(self.lines)) - 1]
        if line is None:
            return JSONResponse({"error": {"message": "no room"}}, 400)
        head = {"id": "x", "created": 0, "model": "big", "object": "chat.completion.chunk"}
        usage = {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320}
        said = {"choices": [{"index": 0, "delta": {"content": f"Here it is:\n```sql\n{line}\n```"}}]}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        parts = [head | each for each in (said, end, {"choices": [], "usage": usage})]
        text = "".join([*(f"data: {json.dumps(part)}\n\n" for part in parts), "data: [DONE]\n\n"])
        return Response(text, media_type="text/event-stream")


@pytest.fixture
def big() -> Iterator[tuple[Big, str]]:
    made = Big()
    with serving(made.app) as address:
        yield made, f"openai:{address}/v1#big"


def larger(name: str) -> Larger:
    return any_model(ModelChoice(name)).as_larger()


def small(talk: Talk, name: str, *lines: str, calibration: Calibration = UNSURE, **options: Any) -> Conversation:
    """A small model that says these lines, with the endpoint for what it is not sure of."""
    made = talk(*lines, **options)
    made.toolbox.calibration, made.toolbox.larger = calibration, larger(name)
    return made


def test_a_sure_answer_stays_here(talk: Talk, big: tuple[Big, str]) -> None:
    endpoint, name = big
    answer = small(talk, name, PLAN, LARGE, calibration=SURE).ask("Which singers are from Spain?")
    assert (answer.rows, answer.escalated, endpoint.asked) == ([["Bo"]], None, [])


def test_what_is_not_sure_goes_up_with_all_that_is_known(talk: Talk, big: tuple[Big, str]) -> None:
    """Guards against a larger model that starts from nothing, and against the small one's confidence on its answer."""
    endpoint, name = big
    endpoint.lines = [LARGE]
    answer = small(talk, name, PLAN, SMALL).ask(QUESTION)
    assert (answer.sql, answer.rows, answer.error) == (LARGE, [["Bo"]], None)
    assert (answer.confidence, answer.probably_wrong) == (None, False)
    assert [other["sql"] for other in answer.alternatives] == [SMALL]
    (messages,) = endpoint.asked
    said = [message["content"] for message in messages]
    assert "CREATE TABLE singer" in said[0] and "Probably needed: singer" in said[1] and QUESTION in said[1]
    assert plan_from_json(said[2]) == PLAN and SMALL in said[4]
    assert said[5].startswith("That query runs, but it gave 0 rows") and "this one if it does" in said[5]
    assert "Ada" not in "".join(said[1:]), "rows of results are not sent"
    cost = answer.escalated or {}
    assert (cost["model"], cost["answered"], cost["prompt_tokens"], cost["new_tokens"]) == ("big", True, 300, 20)
    assert cost["wall_ms"] > 0
    assert [step["detail"] for step in answer.steps if step["name"] == "refine"] == ["big"]
    back = from_json(to_json(Answered(answer.to_dict(), 1)))
    assert isinstance(back, Answered) and back.answer["escalated"] == answer.escalated


def test_sql_that_failed_goes_up_with_its_error(talk: Talk, big: tuple[Big, str]) -> None:
    endpoint, name = big
    endpoint.lines = [LARGE]
    answer = small(talk, name, PLAN, "SELECT nam FROM singer_x", max_attempts=1).ask(QUESTION)
    assert answer.rows == [["Bo"]] and answer.alternatives == []
    said = [message["content"] for message in endpoint.asked[0]]
    assert "singer_x" in said[4] and said[5].startswith("That query does not do:")
    assert [bool(attempt["error"]) for attempt in answer.attempts] == [True, False]


def test_the_larger_models_sql_passes_the_same_guard(talk: Talk, big: tuple[Big, str]) -> None:
    """What it may not do is told to it once; then the small model's answer stays, with its mark."""
    endpoint, name = big
    endpoint.lines = ["WITH gone AS (SELECT 1) DELETE FROM singer", LARGE]
    assert small(talk, name, PLAN, SMALL).ask(QUESTION).rows == [["Bo"]]
    assert "DELETE FROM singer" in endpoint.asked[1][6]["content"]
    endpoint.lines, endpoint.asked = ["WITH gone AS (SELECT 1) DELETE FROM singer"], []
    talking = small(talk, name, PLAN, SMALL)
    answer = talking.ask(QUESTION)
    assert (answer.sql, answer.rows, answer.probably_wrong) == (SMALL, [], True)
    assert "The larger model's SQL did not run either" in answer.answer
    assert answer.escalated and not answer.escalated["answered"] and answer.escalated["new_tokens"] == 40
    count = talking.toolbox.database.execute("SELECT COUNT(*) FROM singer", talking.toolbox.limits)
    assert getattr(count, "rows", None) == ((3,),) or list(count.rows) == [(3,)]  # type: ignore[union-attr]


def test_an_endpoint_that_fails_leaves_the_small_models_answer_with_its_mark(talk: Talk, big: tuple[Big, str]) -> None:
    endpoint, name = big
    endpoint.lines = [None]
    answer = small(talk, name, PLAN, SMALL).ask(QUESTION)
    assert (answer.sql, answer.error, answer.probably_wrong) == (SMALL, None, True)
    assert answer.confidence == pytest.approx(0.1091, abs=1e-4)
    assert answer.answer.count("Asking the larger model failed and was left out") == 1 and "no room" in answer.answer
    assert answer.escalated and not answer.escalated["answered"]
    unsure = small(talk, name, PLAN, SMALL, PLAN, PLAN, PLAN, PLAN, at_least=0.95).ask(QUESTION)
    assert unsure.error and unsure.error["kind"] == "unsure" and unsure.alternatives[0]["sql"] == SMALL


def test_an_endpoint_that_is_gone_is_one_line(talk: Talk) -> None:
    """The connection is lost between two questions."""
    with serving(Big([LARGE]).app) as address:
        talking = small(talk, f"openai:{address}/v1#big", PLAN, SMALL)
    answer = talking.ask(QUESTION)
    assert answer.sql == SMALL and answer.probably_wrong
    assert "Asking the larger model failed and was left out" in answer.answer and "\n" not in answer.answer


def test_shares_and_costs_are_added_up(talk: Talk, big: tuple[Big, str], tmp_path: Path, monkeypatch: Any) -> None:
    endpoint, name = big
    endpoint.lines = [LARGE, LARGE, "DELETE FROM singer"]
    path = tmp_path / "log.sqlite"
    log = AuditLog(path)
    for calibration in (SURE, UNSURE, UNSURE, UNSURE):
        talking = small(talk, name, PLAN, SMALL, calibration=calibration)
        talking.toolbox.trail = Trail(log, "ada", "ask")
        talking.ask(QUESTION)
    shares = log.shares(Wanted())
    assert (shares.questions, shares.own) == (4, 2)
    cost = shares.larger["big"]
    assert (cost.asked, cost.answered, cost.prompt_tokens, cost.new_tokens) == (3, 2, 1200, 80)
    assert log.shares(Wanted(who="eve")).questions == 0
    log.close()
    monkeypatch.setenv("SQLAGENT_LOG", str(path))
    shown = CliRunner().invoke(app, ["logs", "--sum", "--json"])
    assert json.loads(shown.stdout)["larger"]["big"]["answered"] == 2
    table = CliRunner().invoke(app, ["logs", "--sum"]).stdout
    assert "own model" in table and "50%" in table and "1,200" in table
    assert "escalated" in CliRunner().invoke(app, ["logs"]).stdout


def test_over_mcp(database: Database, big: tuple[Big, str], talk: Talk) -> None:
    endpoint, name = big
    endpoint.lines = [LARGE]

    class Loaded:
        def toolbox(self, *given: Any) -> AgentContext:
            return small(talk, name, PLAN, SMALL).toolbox

    async def asked() -> Any:
        with_model = Assistant(database, ModelChoice(), model=Loaded())  # type: ignore[arg-type]
        async with Client(server_of({"concerts": with_model})) as client:
            return (await client.call_tool("ask", {"question": QUESTION})).structured_content

    found = anyio.run(asked)
    assert found["rows"] == [["Bo"]] and found["escalated"]["model"] == "big" and found["escalated"]["answered"]


def test_from_the_command_line_and_from_python(big: tuple[Big, str], singers: Path) -> None:
    """With the embedded model, which is never 99 % sure."""
    import sqlagent

    endpoint, name = big
    endpoint.lines = [LARGE]
    asked = ["ask", QUESTION, "--db", str(singers), "--escalate", name, "--at-least", "0.99", "--no-clarify"]
    done = CliRunner().invoke(app, [*asked, "--json"])
    answer = json.loads(done.stdout)
    assert (answer["rows"], answer["escalated"]["new_tokens"]) == ([["Bo"]], 20)
    assert "big answered: 300 tokens read, 20 written" in CliRunner().invoke(app, asked).stdout
    with sqlagent.open(singers, options=sqlagent.AgentOptions(at_least=0.99), escalate=name) as opened:
        found: Answer = opened.ask(QUESTION)
    assert found.rows == [["Bo"]] and found.escalated and found.escalated["answered"]


@pytest.mark.parametrize("name", ["embedded", "sqlagent-135m"])
def test_the_small_model_is_not_the_larger_one(name: str) -> None:
    with pytest.raises(OptionRefused, match="is no larger model"):
        load_model(ModelChoice(escalate=name))


def test_wrong_names_are_said_before_a_question(big: tuple[Big, str], tmp_path: Path, database: Database) -> None:
    _, name = big
    with pytest.raises(ModelUnavailable, match="serves no 'small'"):
        load_model(ModelChoice(escalate=name.replace("#big", "#small")))
    with pytest.raises(ModelUnavailable, match="no OpenAI-compatible endpoint"):
        load_model(ModelChoice(escalate="openai:http://127.0.0.1:9/v1#big"))
    with pytest.raises(OptionRefused, match="leave out --escalate"):
        any_model(ModelChoice(name, escalate="other"))
    unjudged = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=8192)
    loaded = load_model(ModelChoice(str(unjudged), escalate=name, dtype="fp32", device="cpu"))
    with pytest.raises(OptionRefused, match="--escalate needs a model that knows how sure it is"):
        loaded.toolbox(database)


def test_a_model_on_this_machine_may_be_the_larger_one(talk: Talk, tmp_path: Path) -> None:
    """A random one: its grammar makes it write SQL over the schema, and its tokens are counted."""
    path = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=8192)
    talking = small(talk, str(path), PLAN, SMALL)
    answer = talking.ask(QUESTION)
    assert answer.escalated and answer.escalated["prompt_tokens"] > 50 and answer.escalated["new_tokens"] > 0
    assert answer.sql and (answer.sql == SMALL) != answer.escalated["answered"]
