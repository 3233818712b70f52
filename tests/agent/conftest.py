"""A small database and a scripted model: the whole graph runs, only the language model's words are given."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel

from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from agent.prompts.compact import Compact
from agent.prompts.profiles import load_profile
from tools.databases.database import Database
from tools.databases.open_database import open_database

SCHEMA = """
CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
CREATE TABLE concert (concert_id INTEGER PRIMARY KEY, title TEXT, year INTEGER,
                      singer_id INTEGER REFERENCES singer (singer_id));
INSERT INTO singer VALUES (1, 'Ada', 'France', 31), (2, 'Bo', 'Spain', 45), (3, 'Cy', 'France', 22);
INSERT INTO concert VALUES (1, 'Home', 2014, 1), (2, 'Away', 2015, 1), (3, 'Up', 2015, 2);
"""
Talk = Callable[..., Conversation]


@pytest.fixture(scope="session")
def singers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("data")) / "singers.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    connection.close()
    return path


@pytest.fixture
def database(singers: Path) -> Iterator[Database]:
    opened = open_database(singers, engine="sqlite")
    yield opened
    opened.close()


@pytest.fixture
def talk(database: Database) -> Talk:
    """A conversation with a model that says the given lines, one per call, and fails when asked once more."""

    def make(*lines: str, profile: str = "compact", **options: Any) -> Conversation:
        model = ScriptedModel(responses=list(lines))
        return Conversation(AgentContext(database, model, load_profile(profile), AgentOptions(**options)))

    return make


class OwnDialect(Compact):
    """The compact prompts for a model that writes the database's own dialect."""

    def dialect(self, database: str) -> str:
        return database


class ScriptedModel(FakeListChatModel):
    """Says its lines in order; a call too many is an error, not a repetition, and none that the agent would survive."""

    calls: int = 0

    def _stream(self, *args: Any, **kw: Any) -> Any:
        self._count()
        return super()._stream(*args, **kw)

    def _call(self, *args: Any, **kw: Any) -> str:
        self._count()
        return super()._call(*args, **kw)

    def _count(self) -> None:
        self.calls += 1
        if self.calls > len(self.responses):
            pytest.fail(f"the model was asked {self.calls} times; the script has {len(self.responses)} lines")
