"""Kinds of databases: which one opens a source, and what one from elsewhere must be."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tools.databases.database import DATABASE_KINDS, DatabaseKind, register_database_kind
from tools.databases.isolated_database import IsolatedDatabase
from tools.databases.open_database import open_database
from tools.result import OpenError, QueryError, Result

OWN = """
from pathlib import Path
from tools.databases.sqlite_database import SQLiteDatabase

class Own(SQLiteDatabase):
    def _run(self, sql, limits, prefix=""):
        return super()._run(sql.replace("LIMIT 99", "LIMIT 1"), limits, prefix)

def open_own(sources):
    return Own(Path(sources[0]), "own")
"""


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    before = dict(DATABASE_KINDS)
    yield
    DATABASE_KINDS.clear()
    DATABASE_KINDS.update(before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a UNION SELECT 2")
    return tmp_path / "x.sqlite"


def opened(sources: list[str]) -> Any:
    raise OpenError("the newer")


def unguarded(sources: list[str]) -> Any:
    return object()


def kind(function: str, recognises: bool = True) -> DatabaseKind:
    return DatabaseKind(lambda sources: recognises, f"{__name__}:{function}")


def test_the_newest_kind_that_recognises_a_source_opens_it(file: Path) -> None:
    register_database_kind("older", kind("unguarded"))
    register_database_kind("newer", kind("opened"))
    register_database_kind("shy", kind("unguarded", recognises=False))
    with pytest.raises(OpenError, match="the newer"):
        open_database(file)
    with closing(open_database(file, engine="sqlite")) as database:
        assert database.dialect == "sqlite"


def test_what_the_guard_does_not_watch_is_not_opened(file: Path) -> None:
    register_database_kind("bare", kind("unguarded"))
    with pytest.raises(OpenError, match="opened a object, which is no GuardedDatabase"):
        open_database(file)


def test_a_kind_is_named_once_and_must_be_known(file: Path) -> None:
    register_database_kind("once", kind("opened"))
    for taken in ("once", "duckdb", "auto", "two words"):
        with pytest.raises(ValueError, match="cannot be called"):
            register_database_kind(taken, kind("opened"))
    with pytest.raises(OpenError, match="unknown engine twice: choose one of auto, duckdb, server, sqlite, once"):
        open_database(file, engine="twice")


def test_a_class_of_ones_own_answers_in_a_process_of_its_own(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_database.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    register_database_kind("own", DatabaseKind(lambda sources: True, "own_database:open_own"))
    with closing(open_database(file, isolated=True)) as database:
        assert isinstance(database, IsolatedDatabase)
        outcome = database.execute("SELECT a FROM t LIMIT 99")
        assert isinstance(outcome, Result) and outcome.rows == ((1,),) and database.pids
        refused = database.execute("DROP TABLE t")
        assert isinstance(refused, QueryError) and refused.kind == "refused"
