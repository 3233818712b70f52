"""DuckDB's SQL as it would have been written for SQLite: it runs there, and returns the same rows."""

import sqlite3
from contextlib import closing

import pytest

from eval.scoring.run_query import comparable
from eval.scoring.spider_rules import order_matters, spider_match
from tests.tools.sql.test_sqlite_to_duckdb import DDL, _pairs
from tools.sql.sqlite_to_duckdb import duckdb_to_sqlite


@pytest.mark.parametrize(("rule", "given", "written"), _pairs())
def test_what_was_translated_comes_back(rule: str, given: str, written: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(DDL)
        rows, back = (connection.execute(sql).fetchall() for sql in (given, duckdb_to_sqlite(written)))
    assert spider_match(comparable(rows), comparable(back), order_matters(given)), duckdb_to_sqlite(written)


def test_what_cannot_be_read_stays() -> None:
    assert duckdb_to_sqlite("SELECT FROM WHERE") == "SELECT FROM WHERE"


def test_nothing_is_left_inside_what_changed() -> None:
    written = "SELECT ANY_VALUE(TRY_CAST(founded AS DOUBLE)) / 2 FROM singer GROUP BY country"
    assert duckdb_to_sqlite(written) == "SELECT founded / 2 FROM singer GROUP BY country"
