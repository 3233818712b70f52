"""The examples of INTERFACES.md run, and each database URL there leads to its driver."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent.assemble import ModelChoice
from agent.assistant import Assistant
from agent.graph.toolbox import Toolbox
from agent.prompts.profiles import load_profile
from app.serve.mcp import server_of
from app.serve.serve import app_of
from decoding.serving.load import load_text_decoder
from decoding.serving.text import Settings
from tests.agent.conftest import ScriptedModel
from tests.app.serve.serving import serving
from tests.decoding.models.tiny_models import tiny_checkpoint
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.databases.server.sqlalchemy_database import open_url
from tools.result import OpenError

TEXT = (Path(__file__).resolve().parents[3] / "INTERFACES.md").read_text()
EXAMPLES = {re.search(r"from (\w+)", code)[1]: code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)}  # type: ignore[index]
URLS = re.findall(r"^(\w[\w+]*://\S+) ", TEXT, re.MULTILINE)


class Counting:
    """In place of a loaded model: it counts the customers."""

    def toolbox(self, database: Database, options: Any, limits: Any) -> Toolbox:
        said = ["plan", "SELECT count(*) AS customers FROM customer"]
        return Toolbox(database, ScriptedModel(responses=said), load_profile("compact"), options, limits)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE customer (name TEXT, total REAL)")
        connection.execute("INSERT INTO customer VALUES ('Ada', 3), ('Bo', 4)")
    connection.close()
    return tmp_path / "shop.sqlite"


def test_python(shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(shop.parent)
    monkeypatch.setattr("agent.assistant.any_model", lambda choice: Counting())
    exec(EXAMPLES["agent"], {})
    assert capsys.readouterr().out == "customers: 2. SELECT count(*) AS customers FROM customer [[2]]\n"


def test_mcp(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        Assistant(open_database(shop), ModelChoice()) as assistant,
        serving(server_of(assistant).streamable_http_app()) as url,
    ):
        exec(EXAMPLES["mcp"].replace("http://127.0.0.1:8001", url), {})
    assert capsys.readouterr().out == "{'columns': ['customers'], 'rows': [[2]], 'truncated': False}\n"


def test_chat_completions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoder = load_text_decoder(str(tiny_checkpoint(tmp_path / "tiny")), dtype="fp32", device="cpu")
    with serving(app_of(decoder, Settings(), 2)) as url:
        exec(EXAMPLES["openai"].replace("http://127.0.0.1:8000", url), {})
    assert capsys.readouterr().out.endswith(" 1.0\n")


def test_every_example_and_url_is_found() -> None:
    assert set(EXAMPLES) == {"agent", "mcp", "openai"} and len(URLS) == 9


@pytest.mark.parametrize("url", URLS[3:])
def test_a_url_leads_to_its_driver(url: str) -> None:
    """None of these drivers is among the tests' packages; the error names the package, and never the password."""
    with pytest.raises(OpenError, match="pip install") as caught:
        open_url(url)
    package = re.search(re.escape(url) + r".*pip install '?([^'\s]+)", TEXT)
    assert package and package[1] in str(caught.value)
    assert "password" not in str(caught.value)
