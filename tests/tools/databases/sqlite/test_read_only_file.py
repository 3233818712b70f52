"""SQLite files that another program writes while we read: its last commit is seen, and nothing is left next to the file."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import QueryError, Result

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
print("ready", flush=True)
for line in sys.stdin:
    for statement in line.split(";"):
        connection.execute(statement)
    print("done", flush=True)
"""


class Writer:
    """Another program that has the file open; each statement is committed when `run` returns, unless it says BEGIN."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, sql: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{sql}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield Writer(process)
        finally:
            process.kill()


@pytest.fixture(params=["wal", "delete"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute(f"PRAGMA journal_mode = {request.param}")
        connection.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (0)")
    return tmp_path / "shop.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = open_database(path, engine="sqlite")
    yield opened
    opened.close()


def _count(database: Database) -> int:
    outcome = database.execute("SELECT count(*) FROM t")
    assert isinstance(outcome, Result), outcome
    return int(outcome.rows[0][0])


def test_every_commit_of_another_program_is_seen(path: Path, database: Database) -> None:
    """Before, a file in WAL mode was opened as immutable once and for all, and a copy of it was never made again."""
    assert _count(database) == 1
    with writing(path) as writer:
        for count in range(2, 20):
            writer.run("INSERT INTO t VALUES (1)")
            assert _count(database) == count
        writer.run("PRAGMA wal_checkpoint(TRUNCATE)")
        assert _count(database) == 19
        writer.run("BEGIN IMMEDIATE; INSERT INTO t VALUES (2)")
        assert _count(database) == 19, "what is not committed is not there"
        writer.run("COMMIT; VACUUM")
        assert _count(database) == 20
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO t VALUES (3)")
        connection.commit()
    assert _count(database) == 21


def test_a_file_that_is_open_elsewhere_from_the_start(path: Path) -> None:
    with writing(path) as writer:
        writer.run("INSERT INTO t VALUES (1)")
        for engine in ("sqlite", "auto"):
            with closing(open_database(path, engine=engine)) as database:  # type: ignore[arg-type]
                assert _count(database) == 2
                writer.run("DELETE FROM t WHERE rowid > 2")
                assert _count(database) == 2


@pytest.mark.parametrize("path", ["wal"], indirect=True)
def test_rows_hold_together_under_checkpoints(path: Path, database: Database) -> None:
    """Two tables that always hold as much as each other, written and checkpointed all the time: no half state, no
    "malformed"."""
    with writing(path) as writer:
        writer.run("CREATE TABLE a (x, y); CREATE TABLE b (x, y)")
    code = f"""
import sqlite3
while True:
    connection = sqlite3.connect({str(path)!r}, isolation_level=None, timeout=60)
    for i in range(30):
        connection.execute("BEGIN IMMEDIATE")
        for table in "ab":
            connection.execute(f"DELETE FROM {{table}} WHERE rowid % 3 = 0")
            connection.executemany(f"INSERT INTO {{table}} VALUES (?, ?)", [(i, "y" * 2000)] * 20)
            connection.execute(f"UPDATE {{table}} SET x = x + 1")
        connection.execute("COMMIT")
        print(i, flush=True)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("BEGIN"), connection.execute("DELETE FROM a"), connection.execute("DELETE FROM b")
    connection.execute("COMMIT")
    connection.close()
"""
    query = (
        "SELECT (SELECT total(x) FROM a) = (SELECT total(x) FROM b), (SELECT count(*) FROM a WHERE length(y) <> 2000)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            outcomes = [database.execute(query) for _ in range(300)]
        finally:
            process.kill()
    told = ("being written", "database is locked")
    bad = [each for each in outcomes if isinstance(each, QueryError) and not any(text in each.message for text in told)]
    assert not bad, bad[:3]
    assert {each.rows for each in outcomes if isinstance(each, Result)} == {((1, 0),)}


def test_nothing_is_left_beside_a_file_in_use(path: Path, database: Database) -> None:
    before = sorted(each.name for each in path.parent.iterdir())
    _count(database)
    assert sorted(each.name for each in path.parent.iterdir()) == before
    with writing(path) as writer:
        writer.run("INSERT INTO t VALUES (1)")
        files = {each: each.read_bytes() for each in path.parent.iterdir()}
        _count(database)
        assert {each: each.read_bytes() for each in path.parent.iterdir()} == files


def test_what_a_killed_program_left_is_read_and_stays(path: Path, database: Database) -> None:
    with writing(path) as writer:
        writer.run("INSERT INTO t VALUES (1)")
        writer.run(
            "PRAGMA cache_size = 1; BEGIN; INSERT INTO t SELECT randomblob(9000) FROM json_each('[1,2,3,4,5,6]');"
        )
    files = {each: each.read_bytes() for each in path.parent.iterdir()}
    assert len(files) > 1
    for _ in range(2):
        assert _count(database) == 2
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == files
