"""The OpenAI-compatible endpoint as OpenAI's own client sees it, and the agent with such an endpoint for a model."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import anyio
import httpx
import openai
import pytest

from agent.assemble import ModelChoice, any_model
from agent.context import AgentOptions
from agent.conversation import Conversation
from agent.prompts.profiles import UnknownProfile
from app.serve import serve
from app.serve.listening import behind_doors
from app.serve.serve import app_of
from decoding.errors import ModelUnavailable
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database

QUEUE = 8
HEADERS = {"authorization": "Bearer secret", "content-type": "application/json"}
ASKED = [{"role": "system", "content": "Count."}, {"role": "user", "content": "one two"}]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=8192)
    return load_text_decoder(str(path), dtype="fp32", device="cpu")


@pytest.fixture(scope="module")
def url(decoder: TextDecoder) -> Iterator[str]:
    with serving(
        behind_doors(app_of(decoder, SamplingParams("prompt_lookup"), QUEUE), "secret", "127.0.0.1")
    ) as address:
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
        yield client


def _plainly(decoder: TextDecoder, text: str, new_tokens: int) -> str:
    prompt = decoder.tokenizer.chat([{"role": "user", "content": text}])
    return decoder.generate(prompt, SamplingParams(max_new_tokens=new_tokens)).text


def test_an_answer_and_its_usage(client: openai.OpenAI, decoder: TextDecoder) -> None:
    assert [model.id for model in client.models.list()] == [decoder.name]
    parts = [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]
    done = client.chat.completions.create(model=decoder.name, messages=parts, max_tokens=12)  # type: ignore[call-overload]
    assert done.choices[0].message.content == _plainly(decoder, "one two", 12)
    assert done.choices[0].finish_reason == "length"
    assert (done.usage.completion_tokens, done.usage.total_tokens) == (12, done.usage.prompt_tokens + 12)
    assert done.usage.tokens_per_forward == pytest.approx(12 / done.usage.target_forwards, abs=1e-3)


def test_a_stream_adds_up_to_the_answer(client: openai.OpenAI, decoder: TextDecoder) -> None:
    asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 20, "temperature": 0.8, "seed": 5}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, whole.choices[0].finish_reason]
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, decoder: TextDecoder) -> None:
    text = _plainly(decoder, "one two", 12)
    messages = [{"role": "user", "content": "one two"}]
    done = client.chat.completions.create(model=decoder.name, messages=messages, stop=text[3:5], max_tokens=12)  # type: ignore[call-overload]
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == (text[: text.index(text[3:5])], "stop")


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"model": "gpt"}, 404, "no model 'gpt'"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "long " * 3000}]}, 400, "the model takes"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, 400, "role"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"n": 0}, 400, "n: "),
        ({"n": 99}, 400, "n: "),
        ({"top_p": 0}, 400, "top_p"),
        ({"top_p": 1.5}, 400, "top_p"),
        ({"frequency_penalty": 2.5}, 400, "frequency_penalty"),
        ({"presence_penalty": "much"}, 400, "presence_penalty"),
        ({"logit_bias": {"5": 100}}, 400, "logit_bias: logits"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools: tools are not called"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"modalities": ["audio"]}, 400, "modalities"),
        ({"extra_body": {"top_k": -2}}, 400, "top_k"),
        ({"extra_body": {"min_p": 1.5}}, 400, "min_p"),
        ({"extra_body": {"repetition_penalty": 0}}, 400, "repetition_penalty"),
        ({"extra_body": {"top_p": True}}, 400, "top_p"),
        ({"extra_body": {"decoder": "fastest"}}, 400, "fastest"),
        ({"extra_body": {"decoder": "jacobi", "decoder_options": {"speed": 9}}}, 400, "jacobi has no option speed"),
        ({"logprobs": True}, 400, "whole answers only"),
        ({"top_logprobs": 3}, 400, "needs logprobs"),
        ({"response_format": {"type": "yaml"}}, 400, "response_format"),
        ({"response_format": {"type": "json_schema"}}, 400, "json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
            400,
            "thing",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "[ab"}}}, 400, "unclosed character class"),
        ({"extra_body": {"structured_outputs": {"regex": "a" * 300_000}}}, 400, "at most 200,000"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, 400, "one of json, regex and choice"),
        ({"extra_body": {"structured_outputs": {"grammar": "a"}}}, 400, "grammar"),
        ({"extra_body": {"structured_outputs": {"json": "[1]"}}}, 400, "a schema is a JSON object"),
    ],
)
def test_what_cannot_be_served_is_said(
    client: openai.OpenAI, decoder: TextDecoder, change: dict[str, object], status: int, says: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=says) as caught:
        client.chat.completions.create(**{"model": decoder.name, "messages": ASKED, "stream": True} | change)  # type: ignore[call-overload]
    assert caught.value.status_code == status


def test_a_wrong_key_and_a_broken_body(url: str) -> None:
    with pytest.raises(openai.AuthenticationError, match="API key"):
        openai.OpenAI(base_url=url, api_key="guess").models.list()
    broken = httpx.post(f"{url}/chat/completions", content=b"{", headers=HEADERS)
    assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text"}], [{"type": "text", "text": 3}], [{"type": "image_url", "image_url": {"url": "x"}}], ["x"],
        {"type": "text", "text": "x"}, None, 3, [[]],
    ],
)  # fmt: skip
def test_content_of_another_shape_is_a_bad_request(url: str, decoder: TextDecoder, content: object) -> None:
    body = {"model": decoder.name, "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    answer = httpx.post(f"{url}/chat/completions", json=body, headers=HEADERS)
    assert answer.status_code == 400 and "messages" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 200_000,
        b'{"model": "\xff"}',
        b'{"messages": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_no_body_is_an_internal_error(url: str, body: bytes) -> None:
    assert httpx.post(f"{url}/chat/completions", content=body, headers=HEADERS).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 400),
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_web_pages_and_foreign_names_are_refused(
    url: str, decoder: TextDecoder, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"model": decoder.name, "messages": ASKED, "max_tokens": 2})
    assert httpx.post(f"{url}/chat/completions", content=body, headers=HEADERS | headers).status_code == status


def test_callers_who_send_their_bodies_slowly_take_no_place(
    decoder: TextDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "BODY_DEADLINE_S", 3.0)
    app = behind_doors(app_of(decoder, SamplingParams("prompt_lookup"), QUEUE), None, "127.0.0.1")
    with serving(app) as address, ExitStack() as lines:
        host, port = address.removeprefix("http://").split(":")
        head = f"POST {serve.CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{{"
        slow = [
            lines.enter_context(closing(socket.create_connection((host, int(port)), timeout=30))) for _ in range(20)
        ]
        for line in slow:
            line.sendall(head.encode())
        asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 2}
        assert httpx.post(f"{address}{serve.CHAT}", json=asked, timeout=60).status_code == 200
        assert all(b" 408 " in line.recv(100) for line in slow)


def test_a_full_queue_refuses_and_then_serves_again(client: openai.OpenAI, decoder: TextDecoder) -> None:
    """Twice as many at once as may be: each gets its own answer or a clean 429, and the places come back."""
    together = Barrier(2 * QUEUE)

    def ask(number: int) -> str | None:
        together.wait()
        try:
            messages = [{"role": "user", "content": f"question {number}"}]
            done = client.chat.completions.create(model=decoder.name, messages=messages, max_tokens=60)  # type: ignore[call-overload]
        except openai.RateLimitError as error:
            return None if error.response.headers["retry-after"] == "1" else "no hint when to come back"
        return str(done.choices[0].message.content)

    with ThreadPoolExecutor(2 * QUEUE) as pool:
        answers = list(pool.map(ask, range(2 * QUEUE)))
    served = {number: text for number, text in enumerate(answers) if text is not None}
    assert QUEUE <= len(served) < 2 * QUEUE
    assert all(text == _plainly(decoder, f"question {number}", 60) for number, text in served.items())
    together = Barrier(1)
    assert ask(0) is not None


def test_an_idle_connection_outlives_the_clients_patience(url: str, decoder: TextDecoder) -> None:
    """Server and client both gave up an idle connection after 5 s: a request just then met a reset."""
    with httpx.Client(limits=httpx.Limits(keepalive_expiry=30), headers=HEADERS) as client:
        address = f"{url}/models"
        first = client.get(address).extensions["network_stream"].get_extra_info("client_addr")
        sleep(5.5)
        assert client.get(address).extensions["network_stream"].get_extra_info("client_addr") == first


def test_half_a_head_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 connections with half a header stayed open; a whole request and an idle connection after it are not cut."""
    monkeypatch.setattr("ui.http.middleware.HEAD_DEADLINE_S", 0.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await anyio.sleep(1.0)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    whole = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    with serving(app) as address:
        where = ("127.0.0.1", int(address.rpartition(":")[2]))
        with (
            closing(socket.create_connection(where, timeout=5)) as silent,
            closing(socket.create_connection(where, timeout=5)) as asking,
        ):
            silent.sendall(whole[:10])
            asking.sendall(whole)
            assert silent.recv(100) == b""
            answers = asking.makefile("rb")
            for _ in range(2):
                assert answers.readline().startswith(b"HTTP/1.1 200")
                while answers.readline().strip():
                    pass
                assert answers.read(2) == b"ok"
                sleep(1.0)
                asking.sendall(whole)
            assert answers.readline().startswith(b"HTTP/1.1 200")


def test_a_reader_who_leaves_frees_the_place(client: openai.OpenAI, decoder: TextDecoder) -> None:
    for _ in range(2 * QUEUE):
        asked = {"model": decoder.name, "messages": ASKED, "max_tokens": 1500, "stream": True}
        with client.with_options(max_retries=5).chat.completions.create(**asked) as stream:  # type: ignore[call-overload]
            next(iter(stream))


def test_the_agent_asks_a_remote_model(
    url: str, decoder: TextDecoder, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random model writes no SQL, but each step's text and tokens must have come over the wire."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    model = any_model(ModelChoice(model=f"openai:{url}#{decoder.name}"))
    answer = Conversation(model.toolbox(database, AgentOptions(max_attempts=1))).ask("How many singers are there?")
    asked = [step for step in answer.steps if step["new_tokens"]]
    assert [step["name"] for step in asked][:2] == ["plan", "generate"]
    assert asked[0]["prompt_tokens"] > 100


def test_a_remote_model_that_cannot_be_had(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with pytest.raises(ModelUnavailable, match="serves no 'gpt'"):
        any_model(ModelChoice(model=f"openai:{url}#gpt"))
    with pytest.raises(ModelUnavailable, match="no OpenAI-compatible endpoint"):
        any_model(ModelChoice(model="openai:http://127.0.0.1:9/v1#gpt"))
    with pytest.raises(UnknownProfile):
        any_model(ModelChoice(model=f"openai:{url}#gpt", profile="compact"))
