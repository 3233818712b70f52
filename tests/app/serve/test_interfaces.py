"""The examples of docs/reference.md run, and each database URL there leads to its driver."""

import re
import sqlite3
from pathlib import Path
from runpy import run_path
from socket import socket
from typing import Any

import pytest

from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.context import AgentContext
from agent.prompts.profiles import load_profile
from app.serve.mcp import server_of
from app.serve.serve import app_of
from decoding.methods.registry import METHODS
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams
from tests.agent.conftest import ScriptedModel
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint
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
        serving(server_of(assistant).streamable_http_app()) as url,
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
