"""A date is compared with a year by its own year; whatever holds no dates, or is compared with no year, stays as it is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.repair.literals.compare_years import compare_years
from tools.repair.repair_query import repair_query
from tools.result import Limits, Result

ROWS = [
    ("a", "2018-12-31", 1),
    ("b", "2019-01-01", 2),
    ("c", "2019-12-31", 2019),
    ("d", "2020-01-01", 4),
    ("e", None, 5),
]
QUERIES = [
    ("SELECT title FROM song WHERE released = 2019", ["b", "c"]),
    ("SELECT title FROM song WHERE released = '2019'", ["b", "c"]),
    ("SELECT title FROM song WHERE released > 2019", ["d"]),
    ("SELECT title FROM song WHERE released >= 2019 AND plays < 5", ["b", "d"]),
    ("SELECT title FROM song WHERE released BETWEEN 2018 AND 2019", ["a", "b", "c"]),
    ("SELECT title FROM song WHERE released IN (2018, 2020)", ["a", "d"]),
    ("SELECT title FROM song WHERE released <> 2019", ["a", "d"]),
]
KEPT = [
    "SELECT title FROM song WHERE released = '2019-01-01'",
    "SELECT title FROM song WHERE released > 201",
    "SELECT title FROM song WHERE plays = 2019",
    "SELECT title FROM song WHERE title = '2019'",
    "SELECT title FROM song WHERE released IS NULL",
]


@pytest.fixture(params=["sqlite DATE", "sqlite TEXT", "duckdb DATE", "duckdb TIMESTAMP", "duckdb TEXT"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    engine, _, kind = request.param.partition(" ")
    path = tmp_path / f"songs.{engine}"
    with closing(sqlite3.connect(path) if engine == "sqlite" else duckdb.connect(path)) as made:
        made.execute(f"CREATE TABLE song (title TEXT, released {kind}, plays INTEGER)")
        made.executemany("INSERT INTO song VALUES (?, ?, ?)", ROWS)
        made.commit()
    with closing(open_database([path], engine=engine)) as opened:
        yield opened


@pytest.mark.parametrize(("sql", "titles"), QUERIES)
def test_years_of_dates(database: Database, sql: str, titles: list[str]) -> None:
    fixed, error = repair_query(sql, database, (), Limits(), mends=("dates",))
    assert error is None
    result = database.execute(fixed, Limits())
    assert isinstance(result, Result)
    assert sorted(row[0] for row in result.rows) == titles
    assert compare_years(fixed, database.schema()) is None


@pytest.mark.parametrize("sql", KEPT)
def test_what_stays(database: Database, sql: str) -> None:
    assert compare_years(sql, database.schema()) is None
