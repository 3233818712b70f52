"""Every way to open a source, and what is said when it cannot be opened. Nothing appears next to a source."""

import datetime
import gc
import gzip
import os
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.tools.databases.files.workbook import write_workbook
from tools.databases.database import Database
from tools.databases.files import loaders
from tools.databases.open_database import open_database
from tools.result import Limits, OpenError, QueryError
from tools.schema import words_of

SPIDER = Path(__file__).parents[4].parent / "shared" / "data" / "spider" / "database"


def _rows(database: Database, sql: str) -> list[tuple[Any, ...]]:
    outcome = database.execute(sql)
    assert not isinstance(outcome, QueryError), outcome
    return list(outcome.rows)


def _listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _duckdb(path: Path, *statements: str) -> Path:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def _sqlite(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


CSV = "name,age,born\nann,40,1985-01-02\nbob,,2013-05-06\n"
PEOPLE = [("ann", 40, datetime.date(1985, 1, 2)), ("bob", None, datetime.date(2013, 5, 6))]


@pytest.mark.parametrize("engine", ["auto", "sqlite", "duckdb"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, engine: str) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(OpenError, match="is a pipe or a device; write what comes from it to a file"):
        open_database(tmp_path / "pipe.csv", engine=engine)


def test_a_workbook_that_would_unpack_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.xlsx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book, book.open("xl/sharedStrings.xml", "w") as part:
        for _ in range(520):
            part.write(bytes(1 << 20))
    with pytest.raises(OpenError, match="would unpack to 520 MiB; save its sheets as CSV"):
        open_database(path)


@pytest.mark.parametrize("name", ["people.csv", "people.txt", "people.tsv", "people.csv.gz", "pe[o]p*le?.csv"])
def test_csv(tmp_path: Path, name: str) -> None:
    """The last name is a pattern to DuckDB, which would read the file next to it."""
    text = CSV.replace(",", "\t") if "tsv" in name else CSV
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    (tmp_path / "peopXle1.csv").write_text("name,age,born\neve,1,2000-01-01\n")
    before = _listing(tmp_path)
    database = open_database(path)
    assert database.dialect == "duckdb"
    assert _rows(database, f"FROM {database.schema().tables[0].name}") == PEOPLE
    database.close()
    assert _listing(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "columns", "rows"),
    [
        (b"a;b\n1;x\n2;y\n", ["a", "b"], [(1, "x"), (2, "y")]),
        ("name,town\nann,Málaga\n".encode("latin-1"), ["name", "town"], [("ann", "Málaga")]),
        ("name,town\nann,Málaga\n".encode("utf-16"), ["name", "town"], [("ann", "Málaga")]),
        ("\ufeffa,b\n1,2\n".encode(), ["a", "b"], [(1, 2)]),
        (b"a,b,c\n1,2,3\n4,5\n7,8,9\n", ["a", "b", "c"], [(1, 2, 3), (4, 5, None), (7, 8, 9)]),
        (b"name\nann\nbob\n", ["name"], [("ann",), ("bob",)]),
        (b'text\n"a, b"\n"c, d"\n', ["text"], [("a, b",), ("c, d",)]),
        (b"a,b\n", ["a", "b"], []),
    ],
    ids=["semicolons", "latin-1", "utf-16", "mark", "short row", "one column", "quoted commas", "header only"],
)
def test_csv_as_people_write_it(
    tmp_path: Path, content: bytes, columns: list[str], rows: list[tuple[object, ...]]
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    database = open_database(path)
    table = database.schema().tables[0]
    assert [column.name for column in table.columns] == columns
    assert _rows(database, "FROM t") == rows


def test_a_late_text_in_a_number_column_loses_no_row(tmp_path: Path) -> None:
    """Guards against types guessed from a sample only, which fail on row 30,002 here."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 30_000 + "x,3\n")
    assert _rows(open_database(path), "SELECT count(*), max(a) FROM t") == [(30_001, "x")]


def test_ragged_rows_are_refused_and_not_dropped(tmp_path: Path) -> None:
    """DuckDB's own guess skips the first three rows of this file without a word."""
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1,2,3\n4,5\n6,7,8,9\n")
    with pytest.raises(OpenError, match="number of columns"):
        open_database(path)


def test_parquet_and_json(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1 AS a, 'x' AS b) TO '{tmp_path}/p.parquet'")
    (tmp_path / "lines.jsonl").write_text('{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n')
    (tmp_path / "array.json").write_text('[{"a": 1, "b": "x"}]')
    assert _rows(open_database(tmp_path / "p.parquet"), "FROM p") == [(1, "x")]
    assert _rows(open_database(tmp_path / "lines.jsonl"), "FROM lines") == [(1, "x"), (2, "y")]
    assert _rows(open_database(tmp_path / "array.json"), 'FROM "array"') == [(1, "x")]


def test_every_sheet_of_a_workbook(tmp_path: Path) -> None:
    day = datetime.date(2020, 1, 2)
    first = [
        [],
        ["id", "name", "on", "score", "ok", None, "id"],
        [1, "ann", day, 1.5, True, None, 7],
        [2, None, day, 2],
    ]
    sheets = {"My Sheet 1": first, "Empty": [], "2020": [["a"], ["x"], [3]], "only head": [["a", "b"]]}
    database = open_database(write_workbook(tmp_path / "book.xlsx", sheets))
    assert [table.name for table in database.schema().tables] == ["My_Sheet_1", "t_2020", "only_head"]
    assert _rows(database, "FROM My_Sheet_1") == [(1, "ann", day, 1.5, True, 7), (2, None, day, 2.0, None, None)]
    columns = [(column.name, column.type) for column in database.schema().tables[0].columns]
    assert columns == [
        ("id", "BIGINT"), ("name", "VARCHAR"), ("on", "DATE"), ("score", "DOUBLE"), ("ok", "BOOLEAN"), ("id_2", "BIGINT"),
    ]  # fmt: skip
    assert _rows(database, "FROM t_2020") == [("x",), ("3",)]
    assert _rows(database, "FROM only_head") == []
    single = open_database(write_workbook(tmp_path / "sales 2021.xlsx", {"Sheet1": [["a"], [1]]}))
    assert [table.name for table in single.schema().tables] == ["sales_2021"]


def test_several_files_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "A.json").write_text('[{"x": 2}]')
    (tmp_path / "notes.md").write_text("not a table")
    (tmp_path / ".hidden.csv").write_text("x\n9\n")
    _sqlite(tmp_path / "s.sqlite", "CREATE TABLE a (x); INSERT INTO a VALUES (3); CREATE TABLE own (x)")
    _duckdb(tmp_path / "d.duckdb", "CREATE TABLE own AS SELECT 4 AS x", "CREATE VIEW seen AS SELECT 5 AS x")
    folder = open_database(tmp_path)
    tables = {table.name: _rows(folder, f'SELECT max(x) FROM "{table.name}"') for table in folder.schema().tables}
    assert tables == {
        "A": [(2,)], "a_2": [(1,)], "own": [(4,)], "seen": [(5,)], "s_a": [(3,)], "s_own": [(None,)],
    }  # fmt: skip
    assert folder.name == tmp_path.name
    two = open_database([tmp_path / "a.csv", str(tmp_path / "A.json")])
    assert [table.name for table in two.schema().tables] == ["a", "A_2"]
    assert two.name == "a and 1 more"


def test_files_are_known_by_their_bytes(tmp_path: Path) -> None:
    _sqlite(tmp_path / "one.db", "CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    _duckdb(tmp_path / "two.db", "CREATE TABLE t AS SELECT 2 AS x")
    assert _rows(open_database(tmp_path / "one.db"), "FROM t") == [(1,)]
    assert _rows(open_database(tmp_path / "two.db"), "FROM t") == [(2,)]
    native = open_database(tmp_path / "one.db", engine="sqlite")
    assert (native.dialect, _rows(native, "SELECT * FROM t")) == ("sqlite", [(1,)])


def test_urls_of_files_are_opened_under_their_engines_locks(tmp_path: Path) -> None:
    sqlite_file = _sqlite(tmp_path / "one.db", "CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    duckdb_file = _duckdb(tmp_path / "two.db", "CREATE TABLE t AS SELECT 2 AS x")
    by_sqlite, by_duckdb = open_database(f"sqlite:///{sqlite_file}"), open_database(f"duckdb:///{duckdb_file}")
    assert (by_sqlite.dialect, _rows(by_sqlite, "SELECT * FROM t")) == ("sqlite", [(1,)])
    assert (by_duckdb.dialect, _rows(by_duckdb, "FROM t")) == ("duckdb", [(2,)])
    assert open_database(f"sqlite:///{sqlite_file}", engine="duckdb").dialect == "duckdb"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "absent.csv", "no such file or folder"),
        (lambda folder: folder / "nothing", "nothing to read in"),
        (lambda folder: folder / "parts", "parts/year=2024/*.csv"),
        (lambda folder: folder / "zeros.csv", "zeros.csv: it is no text"),
        (lambda folder: folder / "empty.csv", "is empty"),
        (lambda folder: folder / "empty.db", "is empty"),
        (lambda folder: folder / "odd.xyz", "cannot tell what"),
        (lambda folder: folder / "damaged.duckdb", "not a DuckDB database"),
        (lambda folder: folder / "damaged.sqlite", "not a SQLite database"),
        (lambda folder: folder / "torn.sqlite", "torn.sqlite"),
        (lambda folder: folder / "torn.duckdb", "torn.duckdb"),
        (lambda folder: folder / "damaged.parquet", "cannot read"),
        (lambda folder: folder / "damaged.json", "cannot read"),
        (lambda folder: folder / "damaged.xlsx", "Excel"),
        (lambda folder: folder / "bytes.csv", "cannot read"),
        (lambda folder: [], "no database given"),
        (lambda folder: ["postgresql://x/y", folder / "odd.xyz"], "stands alone"),
        (lambda folder: "oracle://me:secret@127.0.0.1:1/x", "pip install 'oracledb'"),
        (lambda folder: "snowflake://me:secret@account/x", "pip install snowflake-sqlalchemy"),
        (lambda folder: "sqlite://", "names no file"),
        (lambda folder: "https://example.org/x.csv", "download the file"),
    ],
)  # fmt: skip
def test_what_cannot_be_opened_is_said_in_one_line(tmp_path: Path, make: Any, words: str) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "parts" / "year=2024").mkdir(parents=True)
    (tmp_path / "zeros.csv").write_bytes(bytes(1 << 20))
    for name in ("empty.csv", "empty.db"):
        (tmp_path / name).touch()
    for name in ("odd.xyz", "damaged.duckdb", "damaged.sqlite", "damaged.parquet", "damaged.xlsx"):
        (tmp_path / name).write_bytes(b"neither this nor that " * 100)
    (tmp_path / "torn.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    (tmp_path / "torn.duckdb").write_bytes(b"\0" * 8 + b"DUCK" + b"\xff" * 5000)
    (tmp_path / "damaged.json").write_text('{"a": [1, 2')
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(OpenError) as caught:
        open_database(make(tmp_path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_engines_take_only_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(OpenError, match="one SQLite file"):
        open_database(tmp_path / "a.csv", engine="sqlite")
    with pytest.raises(OpenError, match="opens files"):
        open_database("postgresql://x/y", engine="duckdb")


def test_a_duckdb_file_that_another_program_writes(tmp_path: Path) -> None:
    hold = f"import duckdb, sys; c = duckdb.connect('{tmp_path}/x.duckdb'); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            with pytest.raises(OpenError, match="open for writing in another program"):
                open_database(tmp_path / "x.duckdb")
        finally:
            holder.stdin.close()


def test_a_read_only_folder(tmp_path: Path) -> None:
    path = _sqlite(tmp_path / "s.sqlite", "CREATE TABLE t (x); INSERT INTO t VALUES (1)")
    (tmp_path / "a.csv").write_text("x\n1\n")
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert _rows(open_database(tmp_path), "SELECT count(*) FROM t, a") == [(1,)]
    finally:
        tmp_path.chmod(0o755)


def test_a_copy_goes_when_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    database = open_database(tmp_path / "a.csv")
    folder = database._copy.folder  # type: ignore[attr-defined]
    assert (folder.stat().st_mode & 0o777, folder.exists()) == (0o700, True)
    database.close()
    database.close()
    assert not folder.exists()
    assert isinstance(database.execute("FROM a"), QueryError)
    forgotten = open_database(tmp_path / "a.csv")
    folder = forgotten._copy.folder  # type: ignore[attr-defined]
    del forgotten
    gc.collect()
    assert not folder.exists()


def test_spilling_stays_out_of_the_users_folder(tmp_path: Path) -> None:
    """DuckDB's default is to spill into a folder next to the file."""
    path = _duckdb(
        tmp_path / "x.duckdb", "CREATE TABLE t AS SELECT range AS i, md5(range::VARCHAR) AS h FROM range(300000)"
    )
    database, small = open_database(path), Limits(max_rows=5, memory_limit_mb=64)
    with database.whole._cursor(small) as (cursor, _):  # type: ignore[attr-defined]
        assert str(tmp_path) not in cursor.execute("SELECT current_setting('temp_directory')").fetchone()[0]
    outcome = database.execute("SELECT h FROM t ORDER BY h, i", small)
    assert not isinstance(outcome, QueryError) or outcome.kind == "memory"
    assert os.listdir(tmp_path) == ["x.duckdb"]


@pytest.mark.parametrize("length", [0, 5000])
def test_a_junk_duckdb_file_is_told_as_one(tmp_path: Path, length: int) -> None:
    """DuckDB speaks of a block, which was taken for a lock of another program."""
    path = tmp_path / "junk.duckdb"
    path.write_bytes(b"\x00" * 8 + b"DUCK" + bytes(range(256)) * (length // 256))
    with pytest.raises(OpenError, match="is not a DuckDB database, or it is damaged") as caught:
        open_database(path)
    assert "another program" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_table_costs_the_same_in_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of every name were looked for in every table: 10,000 tables were not opened in three minutes."""
    calls: list[str | None] = []
    monkeypatch.setattr(loaders, "words_of", lambda text: calls.append(text) or words_of(text))
    with closing(sqlite3.connect(tmp_path / "many.sqlite")) as connection:
        for number in range(40):
            connection.execute(f"CREATE TABLE t{number} (a INTEGER)")
        connection.commit()
    with closing(open_database(tmp_path / "many.sqlite")) as database:
        assert len(database.schema().tables) == 40 and len(calls) <= 80
