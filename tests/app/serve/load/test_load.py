"""The load test must see what it is for: wrong answers, refusals, failures, late tokens; and none wrong on our server."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from app.cli import app
from app.serve.load.clients import long_prompt
from app.serve.load.report import Answer, Tally, report_of
from app.serve.serve import app_of
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import Settings
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint


def _load(url: str, *options: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["load", f"{url}/v1", "--questions", "5", "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def test_our_server_mixes_nothing_up_and_refuses_what_is_too_much(tmp_path: Path) -> None:
    decoder = load_text_decoder(str(tiny_checkpoint(tmp_path / "tiny")), dtype="fp32", device="cpu")
    with serving(app_of(decoder, Settings("prompt_lookup"), 6)) as url:
        code, report = _load(url, "--clients", "12", "--seconds", "2", "--max-tokens", "16")
    assert (code, report["wrong"], report["failed"]) == (0, 0, 0)
    assert report["answered"] >= 6 and report["refused"] > 0
    assert 0 < report["p50_ms"] <= report["p95_ms"] <= report["p99_ms"]
    assert report["first_p50_ms"] is None and report["newcomers"] is None


@pytest.mark.parametrize("rows", [0, 32])
def test_long_newcomers_are_answered_beside_the_others(tmp_path: Path, rows: int) -> None:
    path = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=2048)
    decoder = load_text_decoder(str(path), dtype="fp32", device="cpu", prompt_rows=rows)
    with serving(app_of(decoder, Settings("prompt_lookup"), 64)) as url:
        options = (
            "--clients",
            "4",
            "--newcomers",
            "2",
            "--newcomer-words",
            "120",
            "--seconds",
            "2",
            "--max-tokens",
            "8",
        )
        code, report = _load(url, *options)
    long = report["newcomers"]
    assert (code, report["wrong"], report["failed"], report["refused"]) == (0, 0, 0, 0)
    assert (long["clients"], long["wrong"], long["failed"]) == (2, 0, 0) and long["answered"] > 0
    assert long["prompt_tokens"] > 120
    assert 0 < report["first_p50_ms"] <= report["first_p95_ms"] <= report["p99_ms"]
    assert 0 <= report["pause_p50_ms"] <= report["pause_p95_ms"] <= report["p99_ms"]


MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]}
HEAD = {"id": "x", "created": 0, "model": "m"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


async def _models(request: Request) -> JSONResponse:
    return JSONResponse(MODELS)


def _endpoint(chat: Any) -> Starlette:
    return Starlette(routes=[Route("/v1/models", _models), Route("/v1/chat/completions", chat, methods=["POST"])])


def test_wrong_answers_and_failures_are_seen() -> None:
    asked = 0

    async def chat(request: Request) -> Response:
        nonlocal asked
        asked += 1
        if asked % 7 == 0:
            return JSONResponse({"error": {"message": "broken"}}, 500, headers={"retry-after": "0"})
        choice = {"index": 0, "message": {"role": "assistant", "content": str(asked // 10)}, "finish_reason": "stop"}
        return JSONResponse(HEAD | {"object": "chat.completion", "choices": [choice], "usage": USAGE})

    with serving(_endpoint(chat)) as url:
        code, report = _load(url, "--clients", "2", "--seconds", "1")
    assert code == 1 and report["wrong"] > 0 and report["failed"] > 0


def _slowly(text: str) -> Iterator[str]:
    """Two pieces, the first 0.1 s after the request and the second 0.2 s after that."""
    for wait_s, piece in ((0.0, ""), (0.1, text[0]), (0.2, text[1:])):
        sleep(wait_s)
        chunk = HEAD | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": piece}}]}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield f"data: {json.dumps(HEAD | {'object': 'chat.completion.chunk', 'choices': [], 'usage': USAGE})}\n\n"
    yield "data: [DONE]\n\n"


@pytest.mark.parametrize("ever_new", [False, True])
def test_first_tokens_pauses_and_newcomers_wrong_answers_are_seen(ever_new: bool) -> None:
    asked = 0

    async def chat(request: Request) -> Response:
        nonlocal asked
        asked += 1
        text = (await request.json())["messages"][0]["content"]
        is_long = not text.startswith("Question")
        return StreamingResponse(
            _slowly(f"{asked:04}" if is_long and ever_new else "same"), media_type="text/event-stream"
        )

    with serving(_endpoint(chat)) as url:
        code, report = _load(url, "--clients", "3", "--seconds", "1.5", "--newcomers", "2")
    assert (code, report["wrong"], report["newcomers"]["wrong"]) == ((1, 0, 2) if ever_new else (0, 0, 0))
    assert report["newcomers"]["prompt_tokens"] == 7
    assert report["first_p50_ms"] >= 100 and 200 <= report["pause_p50_ms"] <= report["p50_ms"] - 100
    assert report["first_p50_ms"] <= report["p50_ms"] - 200


def test_a_newcomers_prompt_begins_like_no_other_one() -> None:
    prompts = [long_prompt(client, number, 50) for client in range(3) for number in range(3)]
    assert len({prompt[:4] for prompt in prompts}) == 9
    assert all(len(prompt.split()) == 53 for prompt in prompts)


def test_figures() -> None:
    tally = Tally([Answer("", 5, 2, i / 1000, i / 2000, i / 4000) for i in range(1, 102)], refused=3)
    report = report_of(tally, 4, 2.0, Tally([Answer("", n, 2, 1.0, n / 1000, 0.0) for n in (100, 300, 800)]), 2)
    assert (report.answered, report.requests_per_s, report.tokens_per_s) == (101, 50.5, 101)
    assert (report.p50_ms, report.p95_ms, report.p99_ms) == pytest.approx((51, 96, 100))
    assert (report.first_p50_ms, report.first_p95_ms, report.pause_p95_ms) == pytest.approx((25.5, 48, 24))
    assert report.newcomers is not None
    assert (report.newcomers.prompt_tokens, report.newcomers.first_p50_ms) == pytest.approx((300, 300))
    assert report.is_good and not report_of(tally, 4, 2.0, Tally(), 2).is_good
