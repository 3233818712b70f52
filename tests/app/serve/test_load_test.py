"""The load test must see what it is for: wrong answers, refusals, failures; and find none of the first on our server."""

import json
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from typer.testing import CliRunner

from app.cli import app
from app.serve.load_test import Tally, report_of
from app.serve.serve import app_of
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import Settings
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint


def _load(url: str, *options: str) -> tuple[int, dict[str, float]]:
    result = CliRunner().invoke(app, ["load", f"{url}/v1", "--questions", "5", "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def test_our_server_mixes_nothing_up_and_refuses_what_is_too_much(tmp_path: Path) -> None:
    decoder = load_text_decoder(str(tiny_checkpoint(tmp_path / "tiny")), dtype="fp32", device="cpu")
    with serving(app_of(decoder, Settings("prompt_lookup"), 6)) as url:
        code, report = _load(url, "--clients", "12", "--seconds", "2", "--max-tokens", "16")
    assert (code, report["wrong"], report["failed"]) == (0, 0, 0)
    assert report["answered"] >= 6 and report["refused"] > 0
    assert 0 < report["p50_ms"] <= report["p95_ms"] <= report["p99_ms"]


def test_wrong_answers_and_failures_are_seen() -> None:
    asked = 0

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]})

    async def chat(request: Request) -> JSONResponse:
        nonlocal asked
        asked += 1
        if asked % 7 == 0:
            return JSONResponse({"error": {"message": "broken"}}, 500, headers={"retry-after": "0"})
        choice = {"index": 0, "message": {"role": "assistant", "content": str(asked // 10)}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
        return JSONResponse(head | {"choices": [choice], "usage": usage})

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])]
    with serving(Starlette(routes=routes)) as url:
        code, report = _load(url, "--clients", "2", "--seconds", "1")
    assert code == 1 and report["wrong"] > 0 and report["failed"] > 0


def test_figures() -> None:
    report = report_of(Tally([i / 1000 for i in range(1, 102)], tokens=500, refused=3), 4, 2.0)
    assert (report.answered, report.requests_per_s, report.tokens_per_s) == (101, 50.5, 250)
    assert (report.p50_ms, report.p95_ms, report.p99_ms) == pytest.approx((51, 96, 100))
