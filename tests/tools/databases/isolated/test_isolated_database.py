"""Queries in a process of their own: same values, nothing trusted, and whatever becomes of it, the next query works."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.attacks.assault import prepare
from tools.databases import isolated_database
from tools.databases.duckdb_database import DuckDBDatabase
from tools.databases.isolated_database import IsolatedDatabase
from tools.databases.open_database import BareNamedDatabase, open_database
from tools.databases.query_process import packed, unpacked
from tools.result import Limits, QueryError, Result

ROOT = Path(__file__).parents[3]
ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b"
EVERY_TYPE = """
    SELECT 1::TINYINT, 170141183460469231731687303715884105727::HUGEINT, 1.50::DECIMAL(9, 2), 0.1::DOUBLE, 'nan'::DOUBLE, 'é',
      NULL, true, DATE '2020-01-02', TIME '03:04:05.6', TIMESTAMP '2020-01-02 03:04:05', TIMESTAMPTZ '2020-01-02 03:04:05+02',
      INTERVAL 2 DAY, 'x'::BLOB, [1, NULL], [1, 2]::INTEGER[2], {'a': {'b': [1]}}, MAP {'a': 1}, MAP {1.5: DATE '2020-01-02'},
      MAP {[1]: (1, 'x')}, uuid '123e4567-e89b-12d3-a456-426614174000', '{"a": 1}'::JSON, '101'::BIT, DATE 'infinity'
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("isolated"))


@pytest.fixture(scope="module")
def database(folder: Path) -> Iterator[IsolatedDatabase]:
    os.environ["A_PASSWORD"] = "TOP-SECRET"
    named = open_database(folder / "people.duckdb", isolated=True)
    assert isinstance(named, BareNamedDatabase) and isinstance(named.whole, IsolatedDatabase)
    with closing(named):
        yield named.whole
    del os.environ["A_PASSWORD"]


def _works(database: IsolatedDatabase) -> bool:
    outcome = database.execute("SELECT count(*) FROM people")
    return isinstance(outcome, Result) and outcome.rows == ((2,),)


def _only_process(database: IsolatedDatabase) -> int:
    assert _works(database)
    (pid,) = database.pids
    return pid


def _during_a_query(database: IsolatedDatabase, signals: signal.Signals, deadline_s: float = 20.0) -> QueryError:
    threading.Timer(0.3, os.kill, (_only_process(database), signals)).start()
    outcome = database.execute(ENDLESS, Limits(deadline_s=deadline_s))
    assert isinstance(outcome, QueryError), outcome
    return outcome


def test_every_value_arrives_as_the_engine_gave_it(database: IsolatedDatabase, folder: Path) -> None:
    """Guards the promise that isolation changes no result: values, their Python types, columns, types."""
    with closing(DuckDBDatabase(folder / "people.duckdb", "people")) as plain:
        ours, theirs = database.execute(EVERY_TYPE), plain.execute(EVERY_TYPE)
    assert isinstance(ours, Result) and isinstance(theirs, Result), (ours, theirs)
    assert (ours.columns, ours.types, ours.truncated) == (theirs.columns, theirs.types, theirs.truncated)
    assert repr(ours.rows) == repr(theirs.rows)


def test_errors_arrive_whole(database: IsolatedDatabase, folder: Path) -> None:
    with closing(DuckDBDatabase(folder / "people.duckdb", "people")) as plain:
        for sql in ("SELECT nme FROM people", "SELECT * FROM peple", "DELETE FROM people", "SELECT '\ud800'", ""):
            assert database.execute(sql) == plain.execute(sql)
            assert database.explain(sql) == plain.explain(sql)
    assert database.explain("SELECT * FROM people") is None


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_bytes_of_a_lost_process_are_at_most_refused(data: bytes) -> None:
    """Guards the parent against its child: no byte may become anything but plain values or a ValueError."""
    try:
        outcome = unpacked(data)
    except ValueError:
        return
    assert outcome is None or isinstance(outcome, Result | QueryError)


def test_forged_results_are_refused() -> None:
    whole = packed(Result(("a",), ("INTEGER",), ((1,),), False, 0.5, ("b",)))
    assert unpacked(whole) == Result(("a",), ("INTEGER",), ((1,),), False, 0.5, ("b",))
    for cut in range(len(whole)):
        with pytest.raises(ValueError):  # noqa: PT011
            unpacked(whole[:cut])


def test_a_process_that_hangs_is_killed(database: IsolatedDatabase) -> None:
    started = time.monotonic()
    error = _during_a_query(database, signal.SIGSTOP, deadline_s=0.5)
    assert (error.kind, error.message) == ("timeout", "stopped after 0.5 s")
    assert time.monotonic() - started < 10
    assert _works(database)


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (signal.SIGSEGV, "other", "crashed its process (SIGSEGV)"),
        (signal.SIGKILL, "memory", "for want of memory"),
        (signal.SIGXCPU, "timeout", "processor time"),
    ],
)
def test_a_crash_costs_one_query(database: IsolatedDatabase, sent: signal.Signals, kind: str, words: str) -> None:
    error = _during_a_query(database, sent)
    assert error.kind == kind and words in error.message and "\n" not in error.message
    assert _works(database)


def test_a_process_lost_while_idle_is_replaced(database: IsolatedDatabase) -> None:
    lost = _only_process(database)
    os.kill(lost, signal.SIGKILL)
    _await_end(lost)
    assert _only_process(database) != lost


def test_what_no_engine_counts_is_bounded_by_the_kernel(database: IsolatedDatabase) -> None:
    """3 GB of text in one value; DuckDB itself would be at it under a limit of 64 MiB."""
    sql = "SELECT length(string_agg(repeat('x', 1000000), '')) FROM range(3000)"
    outcome = database.execute(sql, Limits(memory_limit_mb=64))
    assert isinstance(outcome, QueryError) and outcome.kind in ("memory", "other"), outcome
    assert _works(database)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_limits_of_the_process(database: IsolatedDatabase) -> None:
    database.execute("SELECT 1", Limits(deadline_s=7, memory_limit_mb=100))
    (pid,) = database.pids
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    soft = {line[:25].strip(): line[26:].split()[0] for line in lines[1:]}
    assert soft["Max core file size"] == "0"
    assert soft["Max file size"] == str(400 << 20)
    assert int(soft["Max cpu time"]) >= 7 + 5
    assert int(soft["Max data size"]) < 16 << 30
    assert "TOP-SECRET" not in Path(f"/proc/{pid}/environ").read_text()


def test_nothing_is_left_behind(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = open_database(folder / "people.sqlite", engine="sqlite", isolated=True)
    assert isinstance(opened, IsolatedDatabase)
    pid = _only_process(opened)
    assert list(tmp_path.iterdir()) != []
    opened.close()
    opened.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    outcome = opened.execute("SELECT 1")
    assert isinstance(outcome, QueryError) and outcome.kind == "connection"


def test_no_process_outlives_its_owner(folder: Path) -> None:
    """Guards against a query that goes on for nobody after `kill -9`."""
    code = f"""
import os, threading, time
from tools.databases.open_database import open_database
database = open_database({str(folder / "people.duckdb")!r}, isolated=True).whole
database.execute("SELECT 1")
threading.Thread(target=database.execute, args=({ENDLESS!r},)).start()
time.sleep(0.3)
print(database.pids[0], flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    _await_end(int(done.stdout))


def _await_end(pid: int) -> None:
    for _ in range(300):
        if not _is_running(pid):
            return
        time.sleep(0.1)
    raise AssertionError("the process goes on")


def _is_running(pid: int) -> bool:
    """A dead process whose parent has gone may wait to be collected."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_vanished_file_is_said_and_its_return_noticed(tmp_path: Path) -> None:
    path = prepare(tmp_path) / "people.sqlite"
    opened = open_database(path, engine="sqlite", isolated=True)
    with closing(opened):
        opened.schema()
        path.rename(tmp_path / "elsewhere")
        error = opened.execute("SELECT 1")
        assert isinstance(error, QueryError) and error.kind == "connection" and "No such file" in error.message
        (tmp_path / "elsewhere").rename(path)
        assert isinstance(opened.execute("SELECT 1"), Result)


class _LateProcess:
    """A process for queries that is told to stop before it knows that time is up, as one that opens its database for long."""

    pid, is_alive = 1, True

    def __init__(self, *_: object, **__: object) -> None:
        self.pipe, self._told, self._answers = self, threading.Event(), 0

    def send(self, _: object) -> None:
        return

    def recv_bytes(self, *_: int) -> bytes:
        self._answers += 1
        if self._answers <= 2:  # it is there; it has taken the request
            return packed(None)
        assert self._told.wait(30)
        return packed(QueryError("interrupted", "stopped on request"))

    def tell(self, _: object) -> None:
        self._told.set()

    def close(self) -> None:
        return


def test_a_deadline_is_never_told_as_a_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_database(folder / "people.duckdb", isolated=True)
    monkeypatch.setattr(isolated_database, "ChildProcess", _LateProcess)
    with closing(opened):
        outcome = opened.execute("SELECT 1", Limits(deadline_s=0.1))
        assert outcome == QueryError("timeout", "stopped after 0.1 s")
