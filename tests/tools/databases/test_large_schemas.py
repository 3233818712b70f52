"""Schemas of thousands of tables: nothing that a question needs may take time by the square of their number."""

import sqlite3
from contextlib import closing
from math import inf
from pathlib import Path
from time import perf_counter

import duckdb
import pytest

from tools.databases import duckdb_catalog, read_only_file
from tools.databases.choices import ROWS_LOOKED_AT, DistinctValues
from tools.databases.database import Distinct
from tools.databases.files.file_kinds import MANY_TABLES
from tools.databases.open_database import open_database, open_uploads, restricted
from tools.linking.link_schema import link
from tools.result import QueryError
from tools.schema import Column, ForeignKey, Schema, Table
from tools.sql.join_graph import edges, joinable

TABLES = 3_000


def _schema(tables: int) -> Schema:
    columns = (Column("code_id", "INTEGER", primary_key=True), Column("tenant_id", "INTEGER"), Column("title", "TEXT"))
    key = ForeignKey(("tenant_id",), "t0", ("code_id",))
    return Schema(tuple(Table(f"t{number}", columns, (key,) if number else ()) for number in range(tables)), "sqlite")


def test_joins_of_thousands_of_tables_with_one_key_are_known_at_once() -> None:
    """Each column was compared with each table, and each pair of tables stored: 40 s at 1,000 tables, for each question."""
    schema = _schema(TABLES)
    started = perf_counter()
    assert ("tenant_id", "tenant_id") in joinable(schema).between("t7", f"t{TABLES - 1}")
    assert ("tenant_id", "code_id") in joinable(schema).between("t7", "t0")
    assert joinable(schema) is joinable(schema) and edges(schema) is edges(schema)
    assert perf_counter() - started < 10


def test_a_question_is_linked_to_thousands_of_tables_at_once() -> None:
    """Every name was cut into words and compared with the question's again for each column: 1.3 s at 1,000 tables."""
    schema = _schema(TABLES)
    started = perf_counter()
    found = link(schema, "What is the title of t17?")
    assert "t17" in {each.table for each in found[:3]} and perf_counter() - started < 10


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "many.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        for number in range(120):
            connection.execute(f'CREATE TABLE "t ""{number}" (name TEXT, secret TEXT, n INTEGER)')
            connection.execute(
                f'INSERT INTO "t ""{number}" VALUES (?, ?, 1), (NULL, NULL, 2)', (f"v{number}", "Xanadu")
            )
        connection.commit()
    return path


@pytest.mark.parametrize("engine", ["sqlite", "auto"])
def test_values_of_many_tables_are_read_with_few_statements(file: Path, engine: str) -> None:
    """Each column was a statement of its own, which the guard judged: 29 ms each, 20 s in all at 1,000 tables."""
    asked = list[Distinct]()
    with closing(open_database(file, engine=engine)) as database:
        look_up = database.distinct
        database.distinct = lambda wanted, limits: asked.append(wanted) or look_up(wanted, limits)  # type: ignore
        columns = [(table, table.columns[0]) for table in database.schema().tables]
        reader = DistinctValues(database, 10, 80, 5.0)
        found = {
            place[0]: values for batch in reader.read(columns, perf_counter() + 60) for place, values in batch.items()
        }
    assert found == {f't "{number}': [f"v{number}"] for number in range(120)} and len(asked) == 1


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("engine", ["sqlite", "auto"])
def test_values_of_hidden_columns_are_not_looked_up(file: Path, engine: str, isolated: bool) -> None:
    """The lookups pass the guard by, so they hold to what may be seen by themselves; the visible columns are still read."""
    table = 't "0'
    with closing(
        restricted(open_database(file, engine=engine, isolated=isolated), (), (f"{table}.secret",))
    ) as database:
        seen = database.distinct(Distinct(((table, "name"),), 5))
        assert not isinstance(seen, QueryError) and seen.rows == ((0, "v0"),)
        hidden = database.distinct(Distinct(((table, "secret"),), 5))
        assert isinstance(hidden, QueryError) and "Xanadu" not in hidden.message


def test_a_sqlite_file_of_many_tables_is_read_where_it_is(tmp_path: Path) -> None:
    """It was copied into DuckDB: minutes at 10,000 tables, before the first question."""
    for tables, dialect in ((MANY_TABLES, "duckdb"), (MANY_TABLES + 1, "sqlite")):
        path = tmp_path / f"with_{tables}.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            for number in range(tables):
                connection.execute(f"CREATE TABLE t{number} (n INTEGER)")
            connection.execute("INSERT INTO t7 VALUES (7)")
            connection.commit()
        with closing(open_database(path)) as database:
            result = database.execute("SELECT n FROM t7")
            assert (database.dialect, database.schema().dialect) == (dialect, dialect)
            assert not isinstance(result, QueryError) and result.rows == ((7,),)
        assert [each.name for each in tmp_path.glob("with_*")].count(path.name) == len(
            [*tmp_path.glob(f"{path.name}*")]
        )


class Counting:
    """A cursor of DuckDB that keeps the statements that it runs."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self.cursor, self.ran = cursor, list[str]()
        self.interrupt = cursor.interrupt

    def execute(self, statement: str) -> duckdb.DuckDBPyConnection:
        self.ran.append(statement)
        return self.cursor.execute(statement)


def test_first_rows_of_many_tables_of_duckdb_are_read_together() -> None:
    """Two statements for each table, which DuckDB planned one by one: 3.5 ms of processor time for each table."""
    with duckdb.connect() as connection:
        for number in range(120):
            connection.execute(f'CREATE TABLE "t ""{number}" AS SELECT {number} AS n, NULL::BLOB AS photo')
        connection.execute(f"CREATE TABLE long AS SELECT i, 'v' || i AS v FROM range({3 * ROWS_LOOKED_AT}) r(i)")
        connection.execute(f"CREATE TABLE just AS SELECT i FROM range({ROWS_LOOKED_AT}) r(i)")
        connection.execute("CREATE VIEW broken AS SELECT i FROM just; DROP TABLE just; CREATE TABLE blobs (b BLOB)")
        cursor = Counting(connection)
        tables = {table.name: table for table in duckdb_catalog.read_schema(cursor, (), {})}  # type: ignore[arg-type]
    assert all(
        (tables[name].row_count, tables[name].columns[0].samples) == (1, (str(number),))
        for number, name in enumerate(f't "{number}' for number in range(120))
    )
    assert (tables["long"].row_count, tables["long"].columns[1].samples) == (3 * ROWS_LOOKED_AT, ("v0", "v1", "v2"))
    assert (tables["blobs"].row_count, tables["broken"].columns[0].samples) == (0, ())
    assert len(cursor.ran) <= 8


def test_tables_of_duckdb_that_are_not_reached_in_time_have_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand tables on a busy machine took the minute that reading a schema may take, and the file did not open."""
    monkeypatch.setattr(duckdb_catalog, "ROWS_S", 0.0)
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE a AS SELECT 'x' AS v FROM range(7000); CREATE TABLE b (v TEXT)")
        cursor = Counting(connection)
        tables = duckdb_catalog.read_schema(cursor, (), {})  # type: ignore[arg-type]
    assert [(table.name, table.row_count, table.columns[0].samples) for table in tables] == [
        ("a", 7000, ()),
        ("b", 0, ()),
    ]
    assert not any('FROM "main"' in statement for statement in cursor.ran)


def test_a_table_that_fails_takes_no_samples_from_others() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE a AS SELECT 'x' AS v; CREATE TABLE b AS SELECT 'y' AS v")
        wanted = {'"main"."a"': "[v]", '"main"."gone"': "[v]", '"main"."b"': "[v]"}
        found = duckdb_catalog._first_rows(connection, wanted, inf)
    assert {name: [list(row) for row in rows] for name, rows in found.items()} == {
        '"main"."a"': [["x"]],
        '"main"."b"': [["y"]],
    }


def test_small_tables_of_sqlite_are_not_counted_once_more(tmp_path: Path) -> None:
    path = tmp_path / "few.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        for rows in (0, ROWS_LOOKED_AT - 1, ROWS_LOOKED_AT, ROWS_LOOKED_AT + 1):
            connection.execute(f"CREATE TABLE t{rows} (n INTEGER)")
            connection.executemany(f"INSERT INTO t{rows} VALUES (?)", [(n,) for n in range(rows)])
        connection.commit()
        ran = list[str]()
        connection.set_trace_callback(ran.append)
        tables = read_only_file.read_schema(connection)
    assert all(table.name == f"t{table.row_count}" for table in tables) and len(tables) == 4
    assert sum("count(*)" in statement for statement in ran) == 2


def test_an_uploaded_file_of_many_tables_is_copied(tmp_path: Path) -> None:
    """A stranger's file is read by bounded processes alone."""
    path = tmp_path / "many.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        for number in range(MANY_TABLES + 1):
            connection.execute(f"CREATE TABLE t{number} (n INTEGER)")
        connection.commit()
    database, _ = open_uploads([path])
    with closing(database):
        assert database.dialect == "duckdb"
