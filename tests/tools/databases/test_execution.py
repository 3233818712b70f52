"""Running queries on real engines: row cap, deadline, memory, interrupt, threads, and errors as data."""

import datetime
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa

from tools.databases.database import Database
from tools.databases.duckdb_database import DuckDBDatabase
from tools.databases.open_database import open_database
from tools.databases.sqlalchemy_database import SQLAlchemyDatabase
from tools.databases.sqlite_database import SQLiteDatabase
from tools.result import Limits, QueryError, Result

DDL = (
    "CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name VARCHAR, country VARCHAR)",
    "CREATE TABLE concert (concert_id INTEGER, singer_id INTEGER, title VARCHAR)",
    "INSERT INTO singer VALUES (1, 'Ann', 'France'), (2, 'Bo', NULL), (3, 'Cy', 'Peru')",
    "INSERT INTO concert VALUES (10, 1, 'Première'), (11, 3, 'Finale')",
)
ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
    " SELECT count(*) FROM n a, n b, n c, n d"
)


def _duckdb(folder: Path) -> DuckDBDatabase:
    with duckdb.connect(str(folder / "music.duckdb")) as connection:
        for statement in DDL:
            connection.execute(statement)
    return DuckDBDatabase(folder / "music.duckdb", "music")


def _sqlite_file(folder: Path) -> Path:
    with closing(sqlite3.connect(folder / "music.sqlite")) as connection:
        for statement in DDL:
            connection.execute(statement)
        connection.commit()
    return folder / "music.sqlite"


def _sqlite(folder: Path) -> SQLiteDatabase:
    return SQLiteDatabase(_sqlite_file(folder), "music")


def _sqlalchemy(folder: Path) -> SQLAlchemyDatabase:
    url = f"sqlite:///file:{_sqlite_file(folder)}?mode=ro&uri=true"
    return SQLAlchemyDatabase(sa.create_engine(url), "music")


def _isolated(folder: Path) -> Database:
    return open_database(_sqlite_file(folder), isolated=True)


@pytest.fixture(
    scope="module",
    params=[_duckdb, _sqlite, _sqlalchemy, _isolated],
    ids=["duckdb", "sqlite", "sqlalchemy", "isolated"],
)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    make: Callable[[Path], Database] = request.param
    opened = make(tmp_path_factory.mktemp("music"))
    yield opened
    opened.close()


def _result(outcome: Result | QueryError) -> Result:
    assert isinstance(outcome, Result), outcome
    return outcome


def _error(outcome: Result | QueryError | None) -> QueryError:
    assert isinstance(outcome, QueryError), outcome
    return outcome


def test_rows_columns_and_duplicates(database: Database) -> None:
    """Guards against rows kept as dicts, where columns of one name collapse."""
    result = _result(database.execute("SELECT name, name, country FROM singer ORDER BY singer_id"))
    assert result.columns == ("name", "name", "country")
    assert result.rows == (("Ann", "Ann", "France"), ("Bo", "Bo", None), ("Cy", "Cy", "Peru"))
    assert len(result.types) == 3
    assert (result.truncated, result.wall_ms > 0) == (False, True)


@pytest.mark.parametrize(
    ("max_rows", "kept", "truncated"), [(3, 3, False), (2, 2, True), (0, 0, True), (100, 3, False)]
)
def test_the_row_cap_says_when_it_cut(database: Database, max_rows: int, kept: int, truncated: bool) -> None:
    result = _result(database.execute("SELECT * FROM singer", Limits(max_rows=max_rows)))
    assert (len(result.rows), result.truncated) == (kept, truncated)


def test_signs_in_texts_mean_themselves(database: Database) -> None:
    """Guards against drivers that take a colon, a percent sign or a question mark for a parameter."""
    result = _result(database.execute("SELECT ':name', '100%', '%s', 'why?', '{x}' FROM singer WHERE name LIKE 'A%'"))
    assert result.rows == ((":name", "100%", "%s", "why?", "{x}"),)


def test_an_endless_query_ends_at_its_deadline(database: Database) -> None:
    started = time.monotonic()
    assert _error(database.execute(ENDLESS, Limits(deadline_s=0.5))).kind == "timeout"
    assert 0.4 < time.monotonic() - started < 1.0
    assert _result(database.execute("SELECT 1")).rows == ((1,),)


def test_interrupt_from_another_thread(database: Database) -> None:
    started = time.monotonic()
    threading.Timer(0.3, database.interrupt).start()
    assert _error(database.execute(ENDLESS, Limits(deadline_s=20))).kind == "interrupted"
    assert time.monotonic() - started < 2.0
    database.interrupt()
    assert _result(database.execute("SELECT 1")).rows == ((1,),)


def test_an_interrupt_stops_every_query_that_runs(database: Database) -> None:
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(database.execute, ENDLESS, Limits(deadline_s=20)) for _ in range(3)]
        time.sleep(0.5)
        database.interrupt()
        assert {_error(future.result(timeout=5)).kind for future in running} == {"interrupted"}


def test_rows_too_heavy_for_the_limit(database: Database) -> None:
    """What an engine hands over is outside the memory that it limits; 2,000 texts of 100 kB are 200 MB."""
    if database.dialect == "duckdb":
        sql = "SELECT repeat('x', 100000) FROM range(2000)"
    else:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        sql = f"{numbers} SELECT hex(zeroblob(50000)) FROM n"
    assert _error(database.execute(sql, Limits(max_rows=5000, memory_limit_mb=64))).kind == "memory"


def test_two_threads_get_their_own_rows(database: Database) -> None:
    def ask(number: int) -> bool:
        result = _result(database.execute(f"SELECT {number} AS n, count(*) FROM singer"))
        return result.rows == ((number, 3),)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(200)))


def test_explain_binds_and_does_not_run(database: Database) -> None:
    started = time.monotonic()
    assert database.explain(ENDLESS) is None
    assert time.monotonic() - started < 0.5
    assert _error(database.explain("SELECT nme FROM singer")).kind == "unknown_column"
    assert _error(database.explain("DROP TABLE singer")).kind == "refused"


@pytest.mark.parametrize(
    ("sql", "kind", "name", "candidates"),
    [
        ("SELECT * FROM singr", "unknown_table", "singr", ("singer",)),
        ("SELECT nme FROM singer", "unknown_column", "nme", ("name",)),
        ("SELECT s.nme FROM singer AS s", "unknown_column", "nme", ("name",)),
        (
            "SELECT singer_id FROM singer, concert",
            "ambiguous_column",
            "singer_id",
            ("singer.singer_id", "concert.singer_id"),
        ),
        ("SELECT lowr(name) FROM singer", "unknown_function", "lowr", ("lower",)),
        ("SELECT * FROM singer WHERE", "syntax", None, ()),
        ("SELECT 1; SELECT 2", "refused", None, ()),
        ("", "syntax", None, ()),
    ],
)
def test_errors_are_data(
    database: Database, sql: str, kind: str, name: str | None, candidates: tuple[str, ...]
) -> None:
    error = _error(database.execute(sql))
    assert error.kind == kind
    assert "\n" not in error.message
    if name is not None:
        assert error.name == name
        assert set(candidates) <= set(error.candidates)
    if error.position is not None and name is not None:
        assert sql[error.position :].lower().removeprefix("s.").startswith(name)


def test_a_name_is_found_behind_accents(database: Database) -> None:
    """DuckDB counts bytes where a QueryError counts characters."""
    sql = "SELECT 'Première', nme FROM singer"
    error = _error(database.execute(sql))
    assert error.position == sql.index("nme")


def test_type_errors_of_duckdb(tmp_path: Path) -> None:
    with closing(_duckdb(tmp_path)) as music:
        for sql in (
            "SELECT sum(name) FROM singer",
            "SELECT * FROM singer WHERE singer_id = 'x'",
            "SELECT * FROM singer WHERE name > 1",
            "SELECT CAST('x' AS DATE)",
            "SELECT 1 + 'x'",
        ):
            assert _error(music.execute(sql)).kind == "type", sql
        missing = _error(music.execute("SELECT x.name FROM singer"))
        assert (missing.kind, missing.name, missing.candidates) == ("unknown_table", "x", ("singer",))
        grouped = _error(music.execute("SELECT name, count(*) FROM singer"))
        assert (grouped.kind, grouped.name, grouped.position) == ("other", "name", 7)


def test_duckdb_keeps_to_its_memory(tmp_path: Path) -> None:
    with closing(_duckdb(tmp_path)) as music:
        limits = Limits(memory_limit_mb=100)
        assert _error(music.execute("SELECT list(range) FROM range(100000000)", limits)).kind == "memory"
        assert _result(music.execute("SELECT 1", limits)).rows == ((1,),)


def test_a_memory_limit_holds_for_its_query_only(tmp_path: Path) -> None:
    """Settings are locked, so another limit opens the file again; queries of both limits must not disturb each other."""

    def ask(limit: int) -> object:
        return _result(
            music.execute("SELECT current_database(), count(*) FROM singer", Limits(memory_limit_mb=limit))
        ).rows

    with closing(_duckdb(tmp_path)) as music, ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, [128, 256, 512, 128] * 20)) == {(("music", 3),)}


def test_values_come_as_python_values(tmp_path: Path) -> None:
    sql = (
        "SELECT 1.50::DECIMAL(9, 2), DATE '2020-01-02', TIMESTAMP '2020-01-02 03:04:05', true, NULL, [1, 2], {'a': 1},"
        " 'x'::BLOB, 1::HUGEINT, INTERVAL 2 DAY"
    )
    with closing(_duckdb(tmp_path)) as music:
        result = _result(music.execute(sql))
    assert result.rows == ((
        Decimal("1.50"), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5), True, None, [1, 2], {"a": 1},
        b"x", 1, datetime.timedelta(days=2),
    ),)  # fmt: skip
    assert result.types[:3] == ("DECIMAL(9,2)", "DATE", "TIMESTAMP")


def test_times_with_a_zone_can_be_fetched(tmp_path: Path) -> None:
    """DuckDB's client needs a package of its own for them, which the project must therefore install."""
    with closing(_duckdb(tmp_path)) as music:
        assert isinstance(_result(music.execute("SELECT now()")).rows[0][0], datetime.datetime)


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    for make in (_duckdb, _sqlite):
        (tmp_path / make.__name__).mkdir()
        closed = make(tmp_path / make.__name__)
        closed.close()
        closed.close()
        assert _error(closed.execute("SELECT 1")).kind == "connection"
