"""Queries that the engine's own plan calls too large are not run, and what it expects is said."""

from pathlib import Path

import pytest

from tests.tools.databases.server.servers import Server
from tests.tools.guard.test_hidden import at, made
from tools.databases.database import Database
from tools.result import Limits, QueryError, Result

JOIN = "SELECT a.n, b.n FROM visits AS a JOIN visits AS b ON a.k = b.k"
ALLOWED = Limits(expected_rows=20_000)


def tables(kind: str) -> tuple[str, ...]:
    rows = ", ".join(f"({number}, {number % 5})" for number in range(2_000))
    analyze = () if kind == "duckdb" else ("ANALYZE TABLE visits",) if kind == "mariadb" else ("ANALYZE visits",)
    return ("CREATE TABLE visits (n INTEGER, k INTEGER)", f"INSERT INTO visits VALUES {rows}", *analyze)


def held(database: Database) -> str:
    """Why the join is not run; the same with no such limit, and a smaller query, run."""
    stopped = database.execute(JOIN, ALLOWED)
    assert isinstance(stopped, QueryError) and stopped.kind == "timeout"
    for sql, limits in ((JOIN, Limits()), ("SELECT max(n) FROM visits", ALLOWED)):
        assert isinstance(database.execute(sql, limits), Result), sql
    return stopped.message


def test_duckdb(tmp_path: Path) -> None:
    with made("duckdb", tmp_path, tables("duckdb")) as database:
        assert "not run: the engine expects 800,000 rows" in held(database)


def test_postgresql_tells_bytes_too(postgresql: Server) -> None:
    with at(postgresql, "planned", tables("postgresql")) as database:
        assert " MB) in one step" in held(database)


def test_mariadb_tells_rows_of_tables(mariadb: Server) -> None:
    """Its plan multiplies no steps: a limit is on what it reads of one table."""
    with at(mariadb, "planned", tables("mariadb")) as database:
        stopped = database.execute(JOIN, Limits(expected_rows=100))
        assert isinstance(stopped, QueryError) and "not run: the engine expects 2,0" in stopped.message
        assert isinstance(database.execute(JOIN, ALLOWED), Result)


def test_sqlite_says_that_its_plan_tells_no_rows(tmp_path: Path) -> None:
    with made("sqlite", tmp_path, tables("duckdb")) as database:
        refused = database.execute("SELECT 1", ALLOWED)
        assert isinstance(refused, QueryError) and "leave --expected-rows out" in refused.message


@pytest.mark.parametrize("sql", ["DELETE FROM visits", "SELECT nothing FROM visits"])
def test_what_cannot_run_is_told_as_ever(sql: str, tmp_path: Path) -> None:
    with made("duckdb", tmp_path, tables("duckdb")) as database:
        limited, free = database.execute(sql, ALLOWED), database.execute(sql)
        assert isinstance(limited, QueryError) and isinstance(free, QueryError) and limited.kind == free.kind
