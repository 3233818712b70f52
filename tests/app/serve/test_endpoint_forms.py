"""The agent tells an endpoint the form of its answers: our own server keeps to it, and one that refuses is asked without."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.assemble import ModelChoice, RemoteModel, any_model
from agent.context import AgentOptions
from agent.conversation import Answer, Conversation
from agent.prompts.chat import plan_from_json
from agent.prompts.plan_format import parse_plan
from app.serve.serve import app_of
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database

PLAN = '{"tables": [{"table": "singer", "columns": ["name"]}], "sketch": "SELECT _ FROM _"}'


class Double:
    """An endpoint of one model. It keeps the bodies of requests; `refuses`: which of them it calls bad."""

    def __init__(self, refuses: str) -> None:
        self.refuses, self.bodies = refuses, list[dict[str, Any]]()
        routes = [Route("/v1/models", self.models), Route("/v1/chat/completions", self.chat, methods=["POST"])]
        self.app = Starlette(routes=routes)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]})

    async def chat(self, request: Request) -> Response:
        self.bodies.append(body := await request.json())
        if self.refuses == "everything" or self.refuses in body:
            return JSONResponse({"error": {"message": "unknown field\nresponse_format"}}, 400)
        text = PLAN if len(body["messages"]) == 2 else "```sql\nSELECT name FROM singer\n```"
        head = {"id": "x", "created": 0, "model": "m", "object": "chat.completion.chunk"}
        parts = [{"index": 0, "delta": {"content": text}}, {"index": 0, "delta": {}, "finish_reason": "stop"}]
        lines = [f"data: {json.dumps(head | {'choices': [part]})}\n\n" for part in parts]
        return Response("".join([*lines, "data: [DONE]\n\n"]), media_type="text/event-stream")

    @property
    def formed(self) -> list[bool]:
        return ["response_format" in body for body in self.bodies]


@pytest.fixture
def double(request: pytest.FixtureRequest) -> Iterator[tuple[Double, RemoteModel]]:
    made = Double(getattr(request, "param", "nothing"))
    with serving(made.app) as address:
        model = any_model(ModelChoice(model=f"openai:{address}/v1#m"))
        assert isinstance(model, RemoteModel)
        yield made, model


def ask(model: RemoteModel, database: Database, **options: Any) -> Answer:
    asked = AgentOptions(max_attempts=1, **options)
    return Conversation(model.toolbox(database, asked)).ask("What are the singers called?")


def test_a_plan_is_asked_for_by_its_schema_and_sql_freely(
    double: tuple[Double, RemoteModel], database: Database
) -> None:
    endpoint, model = double
    assert ask(model, database).sql == "SELECT name FROM singer"
    assert endpoint.formed == [True, False]
    form = endpoint.bodies[0]["response_format"]["json_schema"]
    tables = form["schema"]["properties"]["tables"]["items"]["anyOf"]
    named = {each["properties"]["table"]["enum"][0]: each["properties"]["columns"]["items"]["enum"] for each in tables}
    assert form["strict"] and named["concert"] == ["concert_id", "title", "year", "singer_id"]
    first, second = (body["messages"] for body in endpoint.bodies)
    assert second[:2] == first and json.loads(second[2]["content"]) == json.loads(PLAN)


@pytest.mark.parametrize("double", ["response_format"], indirect=True)
def test_a_refusal_is_said_once_and_then_no_form_is_sent(
    double: tuple[Double, RemoteModel], database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint, model = double
    answers = [ask(model, database) for _ in range(2)]
    assert [answer.sql for answer in answers] == ["SELECT name FROM singer"] * 2
    assert endpoint.formed == [True, False, False, False, False]
    assert "First plan the query on one line" in endpoint.bodies[1]["messages"][1]["content"]
    details = [step["detail"] for answer in answers for step in answer.steps if step["name"] == "plan"]
    assert details == ["without a form of its answer, which the endpoint refused", ""]
    told = [line for line in capsys.readouterr().err.splitlines() if "response_format" in line]
    assert len(told) == 1 and told[0].startswith("sqlagent: the endpoint takes no response_format")


@pytest.mark.parametrize("double", ["everything"], indirect=True)
def test_a_request_that_is_bad_without_a_form_too_says_nothing_about_forms(
    double: tuple[Double, RemoteModel], database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint, model = double
    for _ in range(2):
        answer = ask(model, database)
        assert answer.error is not None and answer.sql is None
    assert endpoint.formed == [True, False, True, False] and capsys.readouterr().err == ""


def test_no_constrain_sends_no_form(double: tuple[Double, RemoteModel], database: Database) -> None:
    endpoint, model = double
    ask(model, database, constrain=False)
    assert endpoint.formed == [False, False]


def test_a_random_model_on_our_own_server_plans_over_the_schema(database: Database, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=8192)
    decoder = load_text_decoder(str(path), dtype="fp32", device="cpu")
    known = {table.name: {column.name for column in table.columns} for table in database.schema().tables}
    with serving(app_of(decoder, SamplingParams("prompt_lookup"), 8)) as url:
        model = any_model(ModelChoice(model=f"openai:{url}/v1#{decoder.name}", temperature=1.0))
        assert isinstance(model, RemoteModel)
        asked = model.toolbox(database, AgentOptions(max_attempts=1))
        steps = Conversation(asked).ask("What are the singers called?").steps
        call = asked.calls["plan"]
        said = [str(model.chat.invoke(list(call.messages), **call.options, seed=seed).text) for seed in range(12)]
    assert next(step for step in steps if step["name"] == "plan")["detail"] == ""
    whole = [plan for each in said if (plan := plan_from_json(each)) is not None]
    assert all(each.startswith('{"tables":[{"table":"') for each in said) and whole
    for table in (table for plan in whole for table in parse_plan(plan).tables):
        assert set(table.columns) <= known[table.name]
