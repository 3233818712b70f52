"""Every hostile statement meets two locks, each tested alone, and leaves the file and its folder as they were.

Guards against: a statement kind that the guard lets through, an engine setting that was dropped, a lock that only works
because the other one stands before it.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from tests.tools.attacks.assault import assault, fingerprint, prepare
from tests.tools.attacks.assault import filled as _sql
from tests.tools.attacks.hostile import HOSTILE
from tests.tools.attacks.hostile_case import BOTH, Hostile
from tools.databases.duckdb_database import DuckDBDatabase
from tools.databases.sqlite_database import SQLiteDatabase
from tools.guard.guard import guard
from tools.result import Limits, QueryError

DEADLINE_S = 0.5
CASES = [(dialect, case) for case in HOSTILE for dialect in case.dialects]
ON_FILES = [(dialect, case) for dialect, case in CASES if dialect in BOTH]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("attacked"))


@pytest.fixture(scope="module")
def databases(folder: Path) -> Iterator[dict[str, DuckDBDatabase | SQLiteDatabase]]:
    opened: dict[str, DuckDBDatabase | SQLiteDatabase] = {
        "duckdb": DuckDBDatabase(folder / "people.duckdb", "people"),
        "sqlite": SQLiteDatabase(folder / "people.sqlite", "people"),
    }
    yield opened
    for database in opened.values():
        database.close()


def test_the_list_is_long_and_every_blind_spot_has_a_reason() -> None:
    assert len(HOSTILE) >= 300
    assert len({(case.sql, case.dialects) for case in HOSTILE}) == len(HOSTILE)
    for case in HOSTILE:
        assert case.guard_sees or case.engine_sees, case.sql
        assert (case.guard_sees and case.engine_sees) == (not case.why), case.sql


@pytest.mark.parametrize("dialect", ["duckdb", "sqlite", "postgres", "mysql"])
def test_the_guard_lets_every_twin_pass(dialect: str) -> None:
    """Guards against a lock that looks at words: the twin has the same ones, as data or as names."""
    twins = {case.twin(dialect) for case in HOSTILE if dialect in case.dialects}
    assert {sql: verdict for sql in twins if (verdict := guard(sql, dialect))} == {}


@pytest.mark.parametrize(("dialect", "case"), CASES, ids=lambda value: getattr(value, "sql", value)[:50])
def test_guard_alone(dialect: str, case: Hostile, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    verdict = guard(_sql(case.sql, folder), dialect)
    assert (verdict is not None) == case.guard_sees, verdict
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("dialect", "case"), ON_FILES, ids=lambda value: getattr(value, "sql", value)[:50])
def test_engine_alone(
    dialect: str, case: Hostile, folder: Path, databases: dict[str, DuckDBDatabase | SQLiteDatabase]
) -> None:
    before, started = fingerprint(folder), time.monotonic()
    outcome = databases[dialect]._run(_sql(case.sql, folder), Limits(deadline_s=DEADLINE_S, memory_limit_mb=256))
    assert time.monotonic() - started < DEADLINE_S + 1.0
    assert "TOP-SECRET" not in str(outcome)
    assert fingerprint(folder) == before
    if case.engine_sees:
        assert isinstance(outcome, QueryError), outcome


@pytest.mark.parametrize("dialect", BOTH)
def test_both_locks(dialect: str, folder: Path, databases: dict[str, DuckDBDatabase | SQLiteDatabase]) -> None:
    limits = Limits(deadline_s=DEADLINE_S, memory_limit_mb=256)

    def run(sql: str) -> tuple[bool, str]:
        outcome = databases[dialect].execute(sql, limits)
        return not isinstance(outcome, QueryError), str(outcome)

    assert assault(run, dialect, folder) == []


@pytest.mark.parametrize(("dialect", "case"), ON_FILES, ids=lambda value: getattr(value, "sql", value)[:50])
def test_explaining_is_guarded_too(
    dialect: str, case: Hostile, folder: Path, databases: dict[str, DuckDBDatabase | SQLiteDatabase]
) -> None:
    if case.guard_sees:
        assert databases[dialect].explain(_sql(case.sql, folder), Limits(deadline_s=DEADLINE_S)) is not None


def test_a_query_leaves_nothing_for_the_next_one(databases: dict[str, DuckDBDatabase | SQLiteDatabase]) -> None:
    """With the guard and the SELECT rule gone, a temporary table would still live and die with its own cursor."""
    for database in databases.values():
        database._run("CREATE TEMP TABLE people AS SELECT 'forged' AS name", Limits())
        outcome = database._run("SELECT name FROM people", Limits())
        assert "forged" not in str(outcome)


def test_views_and_macros_of_a_hostile_file(tmp_path: Path) -> None:
    """No guard sees what a view or a macro holds; the schema is read past it too."""
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nTOP-SECRET\n")
    with duckdb.connect(str(tmp_path / "trap.duckdb")) as connection:
        connection.execute(f"CREATE VIEW bait AS SELECT * FROM read_text('{secret}')")
        connection.execute(f"CREATE MACRO lower(x) AS (SELECT content FROM read_text('{secret}'))")
        connection.execute(f"CREATE MACRO range(x) AS TABLE SELECT content FROM read_text('{secret}')")
    with closing(sqlite3.connect(tmp_path / "trap.sqlite")) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute(f"CREATE VIEW bait AS SELECT load_extension('{tmp_path}/evil') AS content FROM t")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
    before = fingerprint(tmp_path)
    trap = DuckDBDatabase(tmp_path / "trap.duckdb", "trap")
    native = SQLiteDatabase(tmp_path / "trap.sqlite", "trap")
    outcomes = [trap.execute("FROM bait"), trap.execute("SELECT lower('x')"), trap.execute("FROM range(3)")]
    outcomes += [native.execute("SELECT content FROM bait")]
    assert isinstance(outcomes[0], QueryError)
    assert isinstance(outcomes[3], QueryError)
    assert "TOP-SECRET" not in str([trap.schema(), native.schema(), *outcomes])
    assert fingerprint(tmp_path) == before


def test_settings_are_safe_and_locked(databases: dict[str, DuckDBDatabase | SQLiteDatabase]) -> None:
    """Past the rule that only a SELECT runs, nothing may still be set."""
    with databases["duckdb"]._cursor(Limits()) as (cursor, _):  # type: ignore[union-attr]
        for setting in ("enable_external_access", "python_enable_replacements", "autoload_known_extensions"):
            assert cursor.execute(f"SELECT current_setting('{setting}')").fetchone() == (False,)
            with pytest.raises(duckdb.Error, match="locked"):
                cursor.execute(f"SET {setting} = true")
        with pytest.raises(duckdb.Error, match="locked"):
            cursor.execute("SET memory_limit = '100GB'")
