"""`/ask`: questions over HTTP, whole or event by event, behind the same doors as the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.context import AgentContext
from agent.prompts.profiles import load_profile
from app.serve.listening import behind_doors
from app.serve.questions import LONGEST_QUESTION, question_route
from app.serve.serve import app_of
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams
from tests.agent.conftest import ScriptedModel
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database

HEADERS = {"authorization": "Bearer secret"}
COUNT = "SELECT COUNT(*) FROM singer"


class Scripted:
    """In place of a loaded model: every conversation counts the singers, then those from France."""

    def toolbox(self, database: Database, options: Any, limits: Any) -> AgentContext:
        lines = ["plan", COUNT, "plan", f"{COUNT} WHERE country = 'France'"]
        return AgentContext(database, ScriptedModel(responses=lines), load_profile("compact"), options, limits)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny"))


@pytest.fixture
def client(database: Database, tiny: str) -> Iterator[httpx.Client]:
    assistant = Assistant(database, ModelChoice(), model=Scripted())  # type: ignore[arg-type]
    decoder = load_text_decoder(tiny, dtype="fp32", device="cpu")
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
