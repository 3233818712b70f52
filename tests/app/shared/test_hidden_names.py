"""`--hide` and `--tables`, given more than once and by the environment, for every command that opens a database.

`--hide` given twice hid only what was named last, and an option switched off what the environment hides.
"""

from pathlib import Path
from typing import Any

import pytest

from app.cli import COMMANDS, _command
from app.shared.option_groups import DatabaseOptions
from tests.app.test_cli import run
from tools.databases.database import Database
from tools.result import OpenError

READERS = ("ask", "chat", "sql", "schema", "ui", "mcp", "serve")


@pytest.fixture
def shop(tmp_path: Path) -> list[str]:
    (tmp_path / "people.csv").write_text("name,wage\nAda,777001\n")
    (tmp_path / "secret.csv").write_text("note\nS3CR3T\n")
    (tmp_path / "open.csv").write_text("word\nhello\n")
    return ["--db", str(tmp_path)]


def _opened(name: str, *arguments: str) -> Database:
    """The database as a command opens it."""
    given: dict[str, Any] = _command(name).make_context(name, list(arguments)).params
    names = ("db", "engine", "tables", "hide")
    return DatabaseOptions(**{each: given[each] for each in names}).open()


def _seen(database: Database) -> set[str]:
    try:
        return {f"{table.name}.{column.name}" for table in database.schema().tables for column in table.columns}
    finally:
        database.close()


@pytest.mark.parametrize("name", READERS)
def test_every_reader_hides_all_that_is_named(name: str, shop: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _seen(_opened(name, *shop, "--hide", "people.wage", "--hide", "secret")) == {"people.name", "open.word"}
    assert _seen(_opened(name, *shop, "--tables", "people", "--tables", "open,secret", "--hide", "secret")) == {
        "people.name",
        "people.wage",
        "open.word",
    }
    monkeypatch.setenv("SQLAGENT_HIDE", "people.wage")
    assert _seen(_opened(name, *shop, "--hide", "secret")) == {"people.name", "open.word"}
    assert "people.wage" not in _seen(_opened(name, *shop, "--hide", ""))
    monkeypatch.setenv("SQLAGENT_TABLES", "people,open")
    assert _seen(_opened(name, *shop)) == {"people.name", "open.word"}
    assert _seen(_opened(name, *shop, "--tables", "open")) == {"open.word"}


def test_every_command_that_hides_is_among_them() -> None:
    hiding = {name for name in COMMANDS if any(each.name == "hide" for each in _command(name).params)}
    assert hiding == set(READERS)


def test_hidden_twice_means_hidden(shop: list[str]) -> None:
    hidden = ("--hide", "people.wage", "--hide", "secret")
    for statement in ("SELECT max(wage) FROM people", "SELECT * FROM secret"):
        said = run("sql", statement, *shop, *hidden)
        assert said.exit_code != 0 and "777001" not in said.output and "S3CR3T" not in said.output
    with pytest.raises(OpenError, match="nosuch"):
        DatabaseOptions(db=[shop[1]], hide=["people.wage", "nosuch"]).open()
