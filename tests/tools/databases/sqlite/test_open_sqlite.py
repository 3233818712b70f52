"""SQLite files, as they are and as copies in DuckDB: types, rows, views, and writes that are still pending next to a file."""

import datetime
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tools.databases import read_only_file
from tools.databases.database import Database
from tools.databases.files import loaders
from tools.databases.open_database import open_database
from tools.result import DEFAULT_LIMITS, OpenError, QueryError

SPIDER = Path(__file__).parents[4].parent / "shared" / "data" / "spider" / "database"


def _rows(database: Database, sql: str) -> list[tuple[Any, ...]]:
    outcome = database.execute(sql)
    assert not isinstance(outcome, QueryError), outcome
    return list(outcome.rows)


def _listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _sqlite(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def _crash(code: str) -> None:
    """Run `code` in a process that ends without closing anything, so that its pending writes stay next to the file."""
    subprocess.run([sys.executable, "-c", f"import os, sqlite3, duckdb\n{code}\nos._exit(0)"], check=True)


def test_pending_writes_are_read_and_left_alone(tmp_path: Path) -> None:
    """Guards against SQLite's -wal and -shm files, which even a read-only connection writes next to a file in WAL mode."""
    _crash(
        f"c = sqlite3.connect('{tmp_path}/clean.sqlite'); c.execute('PRAGMA journal_mode = wal')\n"
        "c.execute('CREATE TABLE t (x)'); c.execute('INSERT INTO t VALUES (1)'); c.commit(); c.close()\n"
        f"c = sqlite3.connect('{tmp_path}/wal.sqlite'); c.execute('PRAGMA journal_mode = wal')\n"
        "c.execute('CREATE TABLE t (x)'); c.execute('INSERT INTO t VALUES (1)'); c.commit()\n"
        f"c = sqlite3.connect('{tmp_path}/hot.sqlite'); c.execute('CREATE TABLE t (x)')\n"
        "c.execute('INSERT INTO t VALUES (1)'); c.commit()\n"
        "c.execute('PRAGMA cache_size = 1'); c.execute('PRAGMA cache_spill = 1')\n"
        "c.executemany('INSERT INTO t VALUES (?)', [('x' * 1000,)] * 500)\n"
        f"d = duckdb.connect('{tmp_path}/wal.duckdb'); d.execute('CREATE TABLE t AS SELECT 1 AS x')\n"
    )
    before = _listing(tmp_path)
    assert {"wal.sqlite-wal", "hot.sqlite-journal", "wal.duckdb.wal"} <= before.keys()
    for engine in ("auto", "sqlite"):
        for name in ("clean", "wal", "hot"):
            database = open_database(tmp_path / f"{name}.sqlite", engine=engine)  # type: ignore[arg-type]
            assert _rows(database, "SELECT x FROM t") == [(1,)], (engine, name)
            database.close()
    database = open_database(tmp_path / "wal.duckdb")
    assert _rows(database, "FROM t") == [(1,)]
    database.close()
    assert _listing(tmp_path) == before


TYPES = """
CREATE TABLE t (
  whole INTEGER, mixed_number NUMERIC, real_ REAL, text_ TEXT, blob_ BLOB, odd INTEGER, day DATE, bad_day DATE,
  moment DATETIME, no_value INT, no_text VARCHAR(9), no_day DATE, yes BOOLEAN, untyped
);
INSERT INTO t VALUES (1, 1, 1.5, 'a', x'00ff', 1, '2020-01-02', '2020-01-02', '2020-01-02 03:04:05', NULL, NULL, NULL, 1, 1);
INSERT INTO t VALUES (9223372036854775807, 2.5, 9e999, char(0, 10, 34, 128512), x'', 'n/a', '2021-12-31', '31 May',
                      '2020-01-02', NULL, NULL, NULL, 0, 'x');
"""  # fmt: skip


def test_sqlite_values_keep_their_types(tmp_path: Path) -> None:
    database = open_database(_sqlite(tmp_path / "s.sqlite", TYPES))
    types = {column.name: column.type for column in database.schema().tables[0].columns}
    assert types == {
        "whole": "BIGINT", "mixed_number": "DOUBLE", "real_": "DOUBLE", "text_": "VARCHAR", "blob_": "BLOB", "odd": "BIGINT",
        "day": "DATE", "bad_day": "VARCHAR", "moment": "TIMESTAMP", "no_value": "BIGINT", "no_text": "VARCHAR",
        "no_day": "DATE", "yes": "BIGINT", "untyped": "VARCHAR",
    }  # fmt: skip
    first, second = _rows(database, "FROM t")
    assert first == (
        1, 1.0, 1.5, "a", b"\x00\xff", 1, datetime.date(2020, 1, 2), "2020-01-02",
        datetime.datetime(2020, 1, 2, 3, 4, 5), None, None, None, 1, "1",
    )  # fmt: skip
    assert second[:6] == (9223372036854775807, 2.5, float("inf"), '\0\n"\U0001f600', b"", None)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    """The official evaluators drop the bytes that do not decode; a raised error would make gold queries fail."""
    path = _sqlite(tmp_path / "s.sqlite", "CREATE TABLE t (x TEXT); INSERT INTO t VALUES (CAST(x'4dff61' AS TEXT))")
    assert _rows(open_database(path), "FROM t") == [("Ma",)]
    assert _rows(open_database(path, engine="sqlite"), "SELECT x FROM t") == [("Ma",)]


@pytest.mark.parametrize("name", ["concert_singer", "world_1", "car_1", "flight_2", "sakila_1"])
def test_a_copy_holds_what_the_file_holds(name: str) -> None:
    path = SPIDER / name / f"{name}.sqlite"
    if not SPIDER.exists():
        pytest.skip("Spider is not at ../shared/data")
    copy = open_database(path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as original:
        original.text_factory = lambda raw: raw.decode(errors="ignore")
        for table in copy.schema().tables:
            theirs = original.execute(f'SELECT * FROM "{table.name}"').fetchall()
            with copy._cursor(DEFAULT_LIMITS) as (cursor, _):  # type: ignore[attr-defined]
                ours = cursor.execute(f'SELECT * FROM "{table.name}"').fetchall()
            assert len(ours) == table.row_count == len(theirs)
            assert [_plain(row) for row in ours] == [_plain(row) for row in theirs]
    copy.close()


def _plain(row: tuple[Any, ...]) -> list[str]:
    """Values as text: a copy's dates print as SQLite's texts, its midnight times without the time, 1.0 as 1."""
    return [str(value).removesuffix(" 00:00:00").removesuffix(".0") for value in row]


def test_loading_is_fast(tmp_path: Path) -> None:
    """Guards against row-wise inserts: 47,000 rows took 20 s by executemany and take 0.4 s by columns on two cores."""
    path = _sqlite(tmp_path / "s.sqlite", "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c REAL, d TEXT, e DATE)")
    with closing(sqlite3.connect(path)) as connection:
        rows = ((i, f"name {i}", i / 3, None if i % 3 else "x", "2020-01-02") for i in range(47_000))
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
    started = time.monotonic()
    database = open_database(path)
    assert time.monotonic() - started < 4.0
    assert _rows(database, "SELECT count(*), count(d), max(a), count(DISTINCT b) FROM t") == [
        (47_000, 15_667, 46_999, 47_000)
    ]


def test_views_and_what_cannot_be_read(tmp_path: Path) -> None:
    """A broken view and a full-text index must not keep the rest from being opened."""
    path = _sqlite(
        tmp_path / "s.sqlite",
        "CREATE TABLE t (x); INSERT INTO t VALUES (1); CREATE VIEW good AS SELECT x + 1 AS y FROM t;"
        "CREATE VIEW broken AS SELECT * FROM gone; CREATE VIRTUAL TABLE words USING fts5(word);"
        "INSERT INTO words VALUES ('hello')",
    )
    copy, native = open_database(path), open_database(path, engine="sqlite")
    for database in (copy, native):
        assert {table.name for table in database.schema().tables} == {"t", "good", "words"}
        assert _rows(database, "SELECT y FROM good") == [(2,)]
        assert _rows(database, "SELECT word FROM words") == [("hello",)]
    assert _rows(native, "SELECT word FROM words WHERE words MATCH 'hello'") == [("hello",)]


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) AS n FROM c"


def test_views_that_never_end_or_fill_memory_have_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run when a file is opened, in the main process; one kept it for ever, another took a gigabyte there."""
    monkeypatch.setattr(read_only_file, "VIEWS_S", 0.5)
    monkeypatch.setattr(loaders, "VIEW_DEADLINE_S", 0.5)
    path = _sqlite(
        tmp_path / "s.sqlite",
        "CREATE TABLE t (x, y AS (hex(zeroblob(x)))); INSERT INTO t (x) VALUES (1), (400000000);"
        f"CREATE VIEW good AS SELECT x FROM t LIMIT 1; CREATE VIEW endless AS {ENDLESS};"
        f"CREATE VIEW another AS {ENDLESS}; CREATE VIEW large AS SELECT hex(zeroblob(400000000)) AS z",
    )
    started_s, before_mb = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    native = {table.name: table for table in open_database(path, engine="sqlite").schema().tables}
    assert time.monotonic() - started_s < 5
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before_mb < 300
    assert list(native) == ["t", "good", "endless", "another", "large"]
    assert native["good"].columns[0].samples == ("1",)
    assert [native[name].columns[0].samples for name in ("t", "endless", "large")] == [()] * 3


def test_reading_the_tables_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_only_file, "DEADLINE_S", 0.0)
    many = "INSERT INTO t WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000) SELECT x FROM c"
    path = _sqlite(tmp_path / "s.sqlite", f"CREATE TABLE t (x); {many}")
    with pytest.raises(OpenError, match=r"cannot read the tables of .*: it takes longer than"):
        open_database(path, engine="sqlite").schema()
