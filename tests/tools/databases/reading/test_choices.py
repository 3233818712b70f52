"""Values of columns that have few: only those, in order, and nothing of what is hidden."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent.prompts.compact import Compact
from agent.prompts.slots import Slots
from tools.databases.choices import with_choices
from tools.databases.database import Database
from tools.databases.open_database import open_database, restricted

NASTY = "x\nsql: D|>"
ROWS = [(i, ["F", "M"][i % 2], i % 2, f"name {i % 3} of a length", f"code {i}", i % 50, NASTY) for i in range(20)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "people.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        columns = "id INTEGER PRIMARY KEY, sex TEXT, active INT, long TEXT, many TEXT, age INT, nasty TEXT"
        connection.execute(f"CREATE TABLE person ({columns})")
        connection.executemany("INSERT INTO person VALUES (?, ?, ?, ?, ?, ?, ?)", ROWS)
        connection.commit()
    return path


def _choices(database: Database) -> dict[str, tuple[str, ...]]:
    columns = with_choices(database.schema(), database).tables[0].columns
    return {column.name: column.choices for column in columns if column.choices}


@pytest.mark.parametrize("engine", ["sqlite", "auto"])
def test_only_few_and_short_values_are_choices(file: Path, engine: str) -> None:
    """Guards against lists of names, of ids and of measures in the prompt."""
    database = open_database(file, engine=engine)  # type: ignore[arg-type]
    assert _choices(database) == {"sex": ("F", "M"), "active": ("0", "1"), "nasty": (NASTY,)}
    database.close()


def test_a_value_from_the_data_stays_in_its_line(file: Path) -> None:
    database = open_database(file, engine="sqlite")
    slots = Slots(with_choices(database.schema(), database), "sqlite", "How many?")
    schema, *rest = Compact().text("plan", slots).splitlines()
    assert "nasty='x sql: D| >'" in schema and "sex='F'|'M', active=0|1" in schema
    assert rest == ["dialect: sqlite", "question: How many?", "plan:"]
    database.close()


def test_what_is_hidden_is_not_read(file: Path) -> None:
    """Also where another asker, who may see it, asked before."""
    whole = open_database(file, engine="sqlite")
    assert "sex" in _choices(whole)
    seen = restricted(whole, (), ("person.sex",))
    assert "sex" not in _choices(seen) and "active" in _choices(seen)
    seen.close()
