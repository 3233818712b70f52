"""Queries that are repaired by rules run, and return what was meant."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tools.databases.open_database import open_database
from tools.repair.repair_query import repair_query
from tools.result import Limits, Result


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT owner FROM pet WHERE kind = 'cat' AND kind = 'dog'", [("Ann",)]),
        ("SELECT onwer FROM pet WHERE kind = 'cat' AND kind = 'dog'", [("Ann",)]),
        ("SELECT owner FROM pet WHERE kind = 'cat'", [("Ann",), ("Bob",)]),
    ],
)
def test_rival_values_are_taken_apart_once_the_query_runs(tmp_path: Path, sql: str, rows: list[tuple[str]]) -> None:
    with sqlite3.connect(tmp_path / "pets.sqlite") as made:
        made.execute("CREATE TABLE pet (owner TEXT, kind TEXT)")
        made.executemany("INSERT INTO pet VALUES (?, ?)", [("Ann", "cat"), ("Ann", "dog"), ("Bob", "cat")])
    with closing(open_database([tmp_path / "pets.sqlite"])) as database:
        fixed, error = repair_query(sql, database, (), Limits())
        assert error is None
        result = database.execute(fixed, Limits())
    assert isinstance(result, Result)
    assert sorted(result.rows) == rows
