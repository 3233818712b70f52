"""Schemas of thousands of tables: nothing that a question needs may take time by the square of their number."""

import sqlite3
from contextlib import closing
from pathlib import Path
from time import perf_counter

import pytest

from tools.databases.choices import DistinctValues
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
        assert [each.name for each in tmp_path.glob("with_*")].count(path.name) == len([*tmp_path.glob(f"{path.name}*")])


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
