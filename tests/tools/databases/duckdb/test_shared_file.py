"""A DuckDB file that other programs write while it is open here: DuckDB locks a file for as long as a process has it open."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

import duckdb
import pytest

from tools.databases import duckdb_database
from tools.databases.database import Database
from tools.databases.open_database import open_database, restricted
from tools.result import Limits, OpenError, QueryError

WRITES = """
import sys, time, duckdb
with duckdb.connect(sys.argv[1]) as file:
    print("open", flush=True)
    file.execute(sys.argv[2])
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as made:
        made.execute("CREATE TABLE sale AS SELECT 1 AS n")
        made.execute("CREATE TABLE wage AS SELECT 77 AS n")
    return path


@pytest.fixture(params=[False, True], ids=["here", "isolated"])
def shop(file: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    with closing(open_database(file, isolated=request.param)) as database:
        yield database


def _written(file: Path, statement: str, for_s: float = 0.0) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(file), statement, str(for_s)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "open\n"
    return writer


def _total(database: Database, limits: Limits = Limits(deadline_s=20)) -> object:
    outcome = database.execute("SELECT sum(n) FROM sale", limits)
    return outcome.rows[0][0] if not isinstance(outcome, QueryError) else outcome


def test_another_program_writes_while_the_file_is_open_here(file: Path, shop: Database) -> None:
    """`dbt build` failed with a conflicting lock for as long as `chat`, `ui` or `mcp` ran."""
    assert _total(shop) == 1
    sleep(3 * duckdb_database.IDLE_S)
    assert _written(file, "INSERT INTO sale VALUES (10)").wait(20) == 0
    assert _total(shop) == 11


def test_a_query_waits_while_another_program_writes(file: Path, shop: Database) -> None:
    """It failed at once, though a write takes moments."""
    assert _total(shop) == 1
    sleep(3 * duckdb_database.IDLE_S)
    writer = _written(file, "INSERT INTO sale VALUES (10)", for_s=1.0)
    assert _total(shop) == 11 and writer.wait(20) == 0


def test_a_writer_that_stays_is_told_in_one_line(file: Path, shop: Database) -> None:
    assert _total(shop) == 1
    sleep(3 * duckdb_database.IDLE_S)
    writer = _written(file, "INSERT INTO sale VALUES (10)", for_s=60)
    began = monotonic()
    told = _total(shop, Limits(deadline_s=1))
    writer.kill()
    writer.wait(20)
    assert isinstance(told, QueryError) and monotonic() - began < 10
    assert told.kind in ("connection", "timeout") and "\n" not in told.message
    assert _total(shop) in (1, 11)


def test_macros_that_were_made_meanwhile_hide_nothing_less(file: Path) -> None:
    """The file is opened again after others wrote it, so what was checked of it is checked again."""
    with closing(restricted(open_database(file), (), ("wage",))) as shop:
        assert _total(shop) == 1
        sleep(3 * duckdb_database.IDLE_S)
        assert _written(file, "CREATE MACRO sum(x) AS (SELECT max(n) FROM wage)").wait(20) == 0
        told = shop.execute("SELECT sum(n) FROM sale")
        assert isinstance(told, QueryError) and "77" not in told.message


def test_closed_stays_closed(file: Path) -> None:
    database = open_database(file)
    database.close()
    assert isinstance(database.execute("SELECT n FROM sale"), QueryError)
    with duckdb.connect(str(file)) as again:
        again.execute("INSERT INTO sale VALUES (2)")


def test_a_file_that_is_being_written_is_waited_for(file: Path) -> None:
    writer = _written(file, "INSERT INTO sale VALUES (10)", for_s=0.5)
    with closing(open_database(file)) as database:
        assert _total(database) == 11
    assert writer.wait(20) == 0


def test_a_file_that_stays_open_elsewhere_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_database, "WRITING_S", 0.2)
    writer = _written(file, "INSERT INTO sale VALUES (10)", for_s=60)
    with pytest.raises(OpenError, match="open for writing in another program"):
        open_database(file)
    writer.kill()
    writer.wait(20)
