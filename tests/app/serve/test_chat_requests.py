"""What a chat completion may ask for, as OpenAI's own client sends it.

The agent tells an endpoint the form of its answers: our own server keeps to it, and one that refuses is asked without.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.assemble import ModelChoice, RemoteModel, any_model
from agent.context import AgentOptions
from agent.conversation import Answer, Conversation
from agent.prompts.profiles import plan_from_json
from agent.prompts.slots import parse_plan
from app.serve.listening import behind_doors
from app.serve.serve import app_of
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database

ASKED = [{"role": "user", "content": "one two"}]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=8192)
    return load_text_decoder(str(path), dtype="fp32", device="cpu")


@pytest.fixture
def url(decoder: TextDecoder) -> Iterator[str]:
    with serving(behind_doors(app_of(decoder, SamplingParams("prompt_lookup"), 8), "secret", "127.0.0.1")) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
        yield client


def test_several_choices_are_several_texts(client: openai.OpenAI, decoder: TextDecoder) -> None:
    asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 12, "temperature": 1.0, "seed": 3}
    one = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    four = client.chat.completions.create(**asked, n=4)  # type: ignore[call-overload]
    texts = [choice.message.content for choice in four.choices]
    assert [choice.index for choice in four.choices] == [0, 1, 2, 3]
    assert texts[0] == one.choices[0].message.content and len(set(texts)) == 4
    assert four.usage.completion_tokens > 3 * 8 and four.usage.prompt_tokens == one.usage.prompt_tokens
    ends = [choice.finish_reason for choice in four.choices]
    streamed = [""] * 4
    finishes: dict[int, str] = {}
    for chunk in client.chat.completions.create(**asked, n=4, stream=True):  # type: ignore[call-overload]
        (choice,) = chunk.choices
        streamed[choice.index] += choice.delta.content or ""
        finishes |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert (streamed, [finishes[index] for index in range(4)]) == (texts, ends)


def test_a_schema_is_kept(client: openai.OpenAI, decoder: TextDecoder) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "number", "schema": SCHEMA, "strict": True}}
    done = client.chat.completions.create(model=decoder.name, messages=ASKED, response_format=wanted)  # type: ignore[call-overload]
    assert set(json.loads(done.choices[0].message.content)) == {"n"} and done.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"choice": ["left", "right"]}, {"left", "right"}),
        ({"regex": "[0-1]"}, {"0", "1"}),
        ({"json": {"enum": ["a", 1]}}, {'"a"', "1"}),
        ({"json": '{"type": "boolean"}'}, {"true", "false"}),
    ],
)
def test_other_forms(client: openai.OpenAI, decoder: TextDecoder, form: dict[str, object], texts: set[str]) -> None:
    more = {"extra_body": {"structured_outputs": form}}
    done = client.chat.completions.create(model=decoder.name, messages=ASKED, temperature=1, **more)  # type: ignore[call-overload]
    assert done.choices[0].message.content in texts


def test_log_probabilities_are_those_of_the_model(client: openai.OpenAI, decoder: TextDecoder) -> None:
    asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    done = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    content = done.choices[0].logprobs.content
    assert "".join(each.token for each in content) == done.choices[0].message.content
    for each in content:  # greedy: the token is the likeliest
        best = [(other.token, other.logprob) for other in each.top_logprobs]
        assert best[0] == (each.token, each.logprob) and len(best) == 3
        assert [p for _, p in best] == sorted((p for _, p in best), reverse=True)
        assert sum(math.exp(p) for _, p in best) <= 1.0
    prompt = decoder.tokenizer.chat(ASKED)
    whole = decoder.generate(prompt, SamplingParams(max_new_tokens=6, likelihood=True))
    assert sum(each.logprob for each in content) == pytest.approx(sum(r.log_prob for r in whole.rounds), abs=1e-4)


def test_a_prediction_is_copied_from(client: openai.OpenAI, decoder: TextDecoder) -> None:
    asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 40}
    alone = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    text = alone.choices[0].message.content
    helped = client.chat.completions.create(**asked, prediction={"type": "content", "content": text})  # type: ignore[call-overload]
    assert helped.choices[0].message.content == text
    assert helped.usage.target_forwards < alone.usage.target_forwards
    assert helped.usage.accepted_tokens > alone.usage.accepted_tokens


def test_the_method_is_the_requests(client: openai.OpenAI, decoder: TextDecoder) -> None:
    asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 20}
    plain = client.chat.completions.create(**asked, extra_body={"decoder": "plain"})  # type: ignore[call-overload]
    other = {"decoder": "jacobi", "decoder_options": {"block_size": 4}}
    jacobi = client.chat.completions.create(**asked, extra_body=other)  # type: ignore[call-overload]
    assert plain.choices[0].message.content == jacobi.choices[0].message.content
    assert plain.usage.drafted_tokens == 0 < jacobi.usage.drafted_tokens


def test_a_request_may_shape_the_distribution(client: openai.OpenAI, decoder: TextDecoder) -> None:
    """They were refused: what Qwen3 and others recommend could not be asked for."""
    asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 16, "temperature": 1, "seed": 5}
    plain = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    texts = []
    for method in ("plain", "jacobi"):
        more = {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "decoder": method}
        done = client.chat.completions.create(  # type: ignore[call-overload]
            **asked, top_p=0.5, presence_penalty=1.5, frequency_penalty=0.5, extra_body=more
        )
        texts.append(done.choices[0].message.content)
    assert texts[0] == texts[1] != plain.choices[0].message.content
    greedy = client.chat.completions.create(**{**asked, "temperature": 0})  # type: ignore[call-overload]
    one = client.chat.completions.create(**asked, extra_body={"top_k": 1})  # type: ignore[call-overload]
    assert one.choices[0].message.content == greedy.choices[0].message.content


def test_fields_that_change_nothing_are_taken(client: openai.OpenAI, decoder: TextDecoder) -> None:
    neutral = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "ada", "n": 1}
    messages = [{"role": "developer", "content": "Count."}, *ASKED]
    done = client.chat.completions.create(model=decoder.name, messages=messages, max_tokens=3, **neutral)  # type: ignore[call-overload]
    assert done.usage.completion_tokens == 3


def test_prometheus_reads_what_was_done(client: openai.OpenAI, url: str, decoder: TextDecoder) -> None:
    replies = [
        client.chat.completions.create(model=decoder.name, messages=ASKED, max_tokens=5, temperature=1, n=n)  # type: ignore[call-overload]
        for n in (1, 2)
    ]
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=decoder.name, messages=ASKED, top_p=1.5)  # type: ignore[call-overload]
    assert httpx.get(f"{url}/metrics").status_code == 401
    page = httpx.get(f"{url}/metrics", headers={"authorization": "Bearer secret"}).text
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(lines["sqlagent_completion_tokens_total"]) == sum(reply.usage.completion_tokens for reply in replies)
    assert lines['sqlagent_requests_total{status="200"}'] == "2.0"
    assert lines['sqlagent_requests_total{status="400"}'] == "1.0"
    assert lines["sqlagent_first_token_seconds_count"] == "2.0" == lines["sqlagent_request_seconds_count"]
    assert float(lines["sqlagent_target_forwards_total"]) <= float(lines["sqlagent_plain_forwards_total"])
    assert lines["sqlagent_requests_under_way"] == "0.0"


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


GUIDED = ["guided_json", "guided_choice", "guided_regex", "guided_grammar", "grammar", "json_schema"]
IGNORED = [
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "repeat_penalty",
    "echo",
    "best_of",
]


@pytest.mark.parametrize(
    "field", [*GUIDED, *IGNORED, "include_stop_str_in_output", "continue_final_message", "nonsense"]
)
def test_a_field_that_is_not_served_is_refused(url: str, decoder: TextDecoder, field: str) -> None:
    """They were ignored with a 200, though they change the text."""
    body = {"model": decoder.name, "messages": ASKED, "max_tokens": 2, field: 1}
    got = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"Authorization": "Bearer secret"})
    assert got.status_code == 400 and field in got.json()["error"]["message"]


def test_a_field_that_changes_nothing_is_taken(url: str, decoder: TextDecoder) -> None:
    body = {"model": decoder.name, "messages": ASKED, "max_tokens": 2, "user": "u", "store": True, "echo": None}
    got = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"Authorization": "Bearer secret"})
    assert got.status_code == 200


@pytest.mark.parametrize("method", ["plain", "prompt_lookup"])
def test_tokens_and_logprobs_end_with_the_stop_string(client: openai.OpenAI, decoder: TextDecoder, method: str) -> None:
    """A draft brought further tokens, as many as it happened to have; they were counted and had log-probabilities."""
    asked = {
        "model": decoder.name,
        "messages": ASKED,
        "max_tokens": 40,
        "logprobs": True,
        "extra_body": {"decoder": method},
    }
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    tokens = [each.token for each in whole.choices[0].logprobs.content]
    stop = next(token for token in tokens[4:] if token.strip() and tokens.index(token) >= 4)
    cut = client.chat.completions.create(**asked, stop=stop)  # type: ignore[call-overload]
    scored = [each.token for each in cut.choices[0].logprobs.content]
    assert cut.usage.completion_tokens == len(scored) and stop not in "".join(scored[:-1])
    assert stop in "".join(scored)


def test_the_bytes_of_tokens_make_the_text(client: openai.OpenAI, decoder: TextDecoder) -> None:
    """A token that is a part of a character had the bytes of U+FFFD."""
    text = "日本語 ďábelské 😀"
    asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 60, "logprobs": True, "top_logprobs": 2}
    got = client.chat.completions.create(**asked, extra_body={"structured_outputs": {"choice": [text]}})  # type: ignore
    made = b"".join(bytes(each.bytes) for each in got.choices[0].logprobs.content)
    assert made.decode() == text == got.choices[0].message.content


def test_one_model_is_described(client: openai.OpenAI, decoder: TextDecoder) -> None:
    """GET /v1/models/{id} was a 404 in plain text."""
    assert client.models.retrieve(decoder.name).id == decoder.name
    with pytest.raises(openai.NotFoundError, match="there is no model 'other' here"):
        client.models.retrieve("other")
