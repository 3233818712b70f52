"""DuckDB's SQL as it would have been written for SQLite: it runs there, and returns the same rows."""

import sqlite3
from contextlib import closing

import pytest

from eval.scoring.run_query import comparable
from eval.scoring.spider_rules import order_matters, spider_match
from tests.tools.sql.test_from_sqlite import DDL, _pairs
from tools.schema import Schema
from tools.sql.to_sqlite import to_sqlite

DUCKDB = Schema((), "duckdb")


@pytest.mark.parametrize(("rule", "given", "written"), _pairs())
def test_what_was_translated_comes_back(rule: str, given: str, written: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(DDL)
        rows, back = (connection.execute(sql).fetchall() for sql in (given, to_sqlite(written, DUCKDB)))
    assert spider_match(comparable(rows), comparable(back), order_matters(given)), to_sqlite(written, DUCKDB)


def test_what_cannot_be_read_stays() -> None:
    assert to_sqlite("SELECT FROM WHERE", DUCKDB) == "SELECT FROM WHERE"


def test_nothing_is_left_inside_what_changed() -> None:
    written = "SELECT ANY_VALUE(TRY_CAST(founded AS DOUBLE)) / 2 FROM singer GROUP BY country"
    assert to_sqlite(written, DUCKDB) == "SELECT founded / 2 FROM singer GROUP BY country"
