"""Values on disk: read once for the same data, never for other data, and nothing hidden among them."""

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from app.shared.databases import files_named
from tools.databases import choices
from tools.databases.annotations import Annotations, with_annotations
from tools.databases.choices import SchemaCache, identity_of, keep_values, with_choices
from tools.databases.database import Database, Distinct
from tools.databases.open_database import open_database, restricted
from tools.databases.sqlite_database import SQLiteDatabase
from tools.linking.match_values import match_values
from tools.result import DEFAULT_LIMITS, Limits, QueryError, Result
from tools.schema import Schema


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE customer (name TEXT, city TEXT, secret TEXT)")
        connection.executemany(
            "INSERT INTO customer VALUES (?, ?, ?)",
            [("Ada", "Lisbon", "Xanadu"), ("Bo", "Lisbon", "Xanadu"), ("Cy", "Oslo", "Xanadu")] * 2,
        )
    return file


@contextmanager
def opened(
    file: Path, folder: Path, hide: tuple[str, ...] = (), engine: str = "auto"
) -> Iterator[tuple[Database, list[str]]]:
    """The database, and the queries that it ran."""
    files, queries = identity_of([file]), list[str]()
    inner = open_database(file, engine=engine)
    distinct = inner.distinct

    def counted(wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        queries.append(repr(wanted))
        return distinct(wanted, limits)

    inner.distinct = counted  # type: ignore[method-assign]
    database = restricted(inner, (), hide)
    keep_values(database, folder, files)
    try:
        yield database, queries
    finally:
        database.close()


def found(database: Database) -> tuple[object, object]:
    cells = [
        (match.table, match.column, match.value) for match in match_values(database, "customers in Lisbon or Xanadu")
    ]
    return cells, with_choices(database.schema(), database).tables[0].columns


@pytest.mark.parametrize("engine", ["auto", "sqlite"])
def test_the_same_data_are_read_once(shop: Path, tmp_path: Path, engine: str) -> None:
    with opened(shop, tmp_path / "values", engine=engine) as (database, queries):
        first = found(database)
        assert first[0] and queries
    with opened(shop, tmp_path / "values", engine=engine) as (database, queries):
        assert found(with_annotations(database, Annotations())) == first
        assert not queries
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "values").iterdir())
    assert stat.S_IMODE((tmp_path / "values").stat().st_mode) == 0o700


def test_changed_data_are_read_anew(shop: Path, tmp_path: Path) -> None:
    with opened(shop, tmp_path / "values") as (database, _):
        found(database)
    with sqlite3.connect(shop) as connection:
        connection.execute("UPDATE customer SET city = 'Porto' WHERE city = 'Lisbon'")
    with opened(shop, tmp_path / "values") as (database, queries):
        assert not match_values(database, "customers in Lisbon")
        assert [match.value for match in match_values(database, "customers in Porto")] == ["Porto"]
        assert queries


def test_a_change_that_is_only_in_the_log_counts(shop: Path) -> None:
    connection = sqlite3.connect(shop)
    connection.execute("PRAGMA journal_mode = WAL")
    before = identity_of([shop])
    connection.execute("UPDATE customer SET city = 'Porto'")
    connection.commit()
    assert identity_of([shop]) != before
    connection.close()
    assert identity_of([shop / "missing"]) == ""


def test_what_is_hidden_is_not_on_the_disk(shop: Path, tmp_path: Path) -> None:
    with opened(shop, tmp_path / "values", hide=("customer.secret",)) as (database, _):
        found(database)
    files = list((tmp_path / "values").iterdir())
    assert files and not any(b"Xanadu" in file.read_bytes() for file in files)
    with opened(shop, tmp_path / "values") as (database, queries):
        found(database)
        assert queries, "another view of the same file has files of its own"
    assert any(b"Xanadu" in file.read_bytes() for file in (tmp_path / "values").iterdir())


def test_damaged_files_are_made_anew_and_old_ones_go(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "values"
    with opened(shop, folder) as (database, _):
        first = found(database)
    for file in folder.iterdir():
        file.write_bytes(b"\xc1 damaged")
    with opened(shop, folder) as (database, queries):
        assert found(database) == first and queries
    monkeypatch.setattr(choices, "MOST_BYTES", 1)
    shop.touch()
    with opened(shop, folder) as (database, queries):
        assert found(database) == first and queries
    assert not list(folder.glob("*.values"))


def test_it_can_be_switched_off_and_servers_have_none(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files_named(str(shop)) == identity_of([shop])
    assert files_named(None) not in ("", identity_of([shop]))
    assert files_named("postgresql://host/shop") == ""
    monkeypatch.setenv("SQLAGENT_VALUES", "off")
    assert files_named(str(shop)) == ""


def test_a_schema_is_read_once_for_the_same_files(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process looked through all tables again: 5.6 s for 1,000 tables of a DuckDB file."""

    def schema(engine: str = "sqlite") -> Schema:
        database = open_database(shop, engine=engine, isolated=True)
        database.keep_schema(SchemaCache(tmp_path / "values", identity_of([shop])))
        with closing(database):
            return database.schema()

    first = schema()
    with monkeypatch.context() as unreadable:
        unreadable.setattr(SQLiteDatabase, "_read_schema", lambda self: pytest.fail("it was read again"))
        assert schema() == first
    assert schema("auto").dialect == "duckdb"
    with sqlite3.connect(shop) as connection:
        connection.execute("ALTER TABLE customer ADD COLUMN street TEXT")
    assert "street" in [column.name for column in schema().tables[0].columns]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "values").iterdir())
