"""What introspection says of real databases: keys, comments, counts, samples, order."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from tools.databases import duckdb_catalog
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.schema import Column, ForeignKey, Schema, Table

SPIDER = Path(__file__).parents[3].parent / "shared" / "data" / "spider" / "database"

SQLITE = """
CREATE TABLE zoo ( -- where animals live
  id INTEGER PRIMARY KEY, -- number of the zoo
  name TEXT NOT NULL /* as on the gate */, opened DATE);
CREATE TABLE Animal (id INTEGER, zoo_id INTEGER REFERENCES ZOO, keeper INT REFERENCES gone (id), kind TEXT, note TEXT,
  photo BLOB, FOREIGN KEY (ID) REFERENCES zoo (Id), PRIMARY KEY (id, zoo_id));
CREATE VIEW old AS SELECT name FROM zoo;
INSERT INTO zoo VALUES (1, 'Basel', '1874-07-03'), (2, 'Basel', '1874-07-03'), (3, 'Berlin', '1844-08-01');
INSERT INTO Animal VALUES (1, 1, 7, 'lynx', '   ', x'00');
INSERT INTO Animal VALUES (2, 1, 7, 'lynx', 'a note too long to be shown in one prompt', x'00'),
  (3, 1, 7, 'otter', NULL, x'00'), (4, 2, 8, 'seal', NULL, x'00'), (5, 3, 9, 'wolf', NULL, x'00');
"""  # fmt: skip


@pytest.fixture(params=["auto", "sqlite"])
def zoo(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    with closing(sqlite3.connect(tmp_path / "zoo.sqlite")) as connection:
        connection.executescript(SQLITE)
    return open_database(tmp_path / "zoo.sqlite", engine=request.param)


def test_sqlite_as_it_is_and_as_a_copy(zoo: Database) -> None:
    """A copy in DuckDB must keep what the file said: keys, comments, the order of tables."""
    schema = zoo.schema()
    assert schema.dialect == zoo.dialect
    assert [(table.name, table.row_count) for table in schema.tables][:2] == [("zoo", 3), ("Animal", 5)]
    first, animal, view = schema.tables
    assert first.columns[0].comment == "number of the zoo"
    assert first.columns[1].comment == "as on the gate"
    assert [(column.primary_key, column.nullable) for column in first.columns] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert [column.name for column in animal.columns if column.primary_key] == ["id", "zoo_id"]
    assert animal.foreign_keys == (ForeignKey(("zoo_id",), "zoo", ("id",)), ForeignKey(("id",), "zoo", ("id",)))
    assert [column.name for column in view.columns] == ["name"]
    assert schema.owners("ID") == ["zoo", "Animal"]


def test_samples_are_few_short_and_distinct(zoo: Database) -> None:
    zoo_table, animal = zoo.schema().tables[:2]
    assert [column.samples for column in zoo_table.columns] == [
        ("1", "2", "3"), ("Basel", "Berlin"), ("1874-07-03", "1844-08-01"),
    ]  # fmt: skip
    by_name = {column.name: column.samples for column in animal.columns}
    assert by_name["kind"] == ("lynx", "otter", "seal")
    assert (by_name["note"], by_name["photo"]) == ((), ())


def test_duckdb_keys_comments_views_and_schemas(tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        for statement in (
            "CREATE TABLE item (id INTEGER PRIMARY KEY, name VARCHAR NOT NULL)",
            "COMMENT ON TABLE item IS 'what is sold'; COMMENT ON COLUMN item.name IS 'as on the label'",
            "CREATE TABLE sale (a INTEGER, b INTEGER REFERENCES item (id), PRIMARY KEY (a, b))",
            "CREATE SCHEMA old; CREATE TABLE old.item (id INTEGER)",
            "CREATE VIEW cheap AS SELECT name FROM item; CREATE VIEW outside AS SELECT * FROM (SELECT 1 AS x)",
            "INSERT INTO item VALUES (1, 'pen'), (2, 'ink')",
        ):
            connection.execute(statement)
    database = open_database(path)
    tables = {table.name: table for table in database.schema().tables}
    assert list(tables) == ["item", "sale", "cheap", "outside", "old__item"]
    assert (tables["item"].comment, tables["item"].columns[1].comment) == ("what is sold", "as on the label")
    assert tables["sale"].foreign_keys == (ForeignKey(("b",), "item", ("id",)),)
    assert tables["item"].row_count == 2
    assert (tables["cheap"].row_count, tables["cheap"].columns[0].samples) == (None, ("pen", "ink"))
    assert database.execute("SELECT count(*) FROM old.item") is not None
    assert database.explain("SELECT * FROM old.item, main.item, shop.main.item") is not None
    assert database.explain("SELECT * FROM old.item, main.item") is None


def test_spiders_own_schema_file_agrees() -> None:
    """Foreign keys as Spider's authors wrote them, for a database whose DDL writes REFERENCES in every way."""
    if not SPIDER.exists():
        pytest.skip("Spider is not at ../shared/data")
    schema = open_database(SPIDER / "concert_singer" / "concert_singer.sqlite").schema()
    keys = {
        (table.name, *key.columns, key.ref_table, *key.ref_columns)
        for table in schema.tables
        for key in table.foreign_keys
    }
    assert keys == {
        ("concert", "Stadium_ID", "stadium", "Stadium_ID"),
        ("singer_in_concert", "Singer_ID", "singer", "Singer_ID"),
        ("singer_in_concert", "concert_ID", "concert", "concert_ID"),
    }
    assert [table.name for table in schema.tables] == ["stadium", "singer", "concert", "singer_in_concert"]


def test_a_schema_is_read_once_and_the_same_each_time(zoo: Database) -> None:
    started = time.monotonic()
    assert all(zoo.schema() is zoo.schema() for _ in range(100))
    assert time.monotonic() - started < 1.0


def test_lookup_ignores_case() -> None:
    schema = Schema((Table("Singer", (Column("Name", "TEXT"),)), Table("song", (Column("name", "TEXT"),))), "duckdb")
    assert schema.table("sINGER") is schema.tables[0]
    assert schema.table("none") is None
    assert schema.owners("NAME") == ["Singer", "song"]
    assert schema.tables[0].column("nAME") is schema.tables[0].columns[0]


def test_a_view_of_duckdb_that_never_ends_has_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the minute that reading a schema may take."""
    monkeypatch.setattr(duckdb_catalog, "VIEWS_S", 0.5)
    with duckdb.connect(str(tmp_path / "s.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x; CREATE VIEW good AS SELECT x FROM t")
        connection.execute("CREATE VIEW later AS SELECT count(*) AS n FROM range(1000000000000) a, range(1000000) b")
    started_s = time.monotonic()
    tables = {table.name: table for table in open_database(tmp_path / "s.duckdb").schema().tables}
    assert time.monotonic() - started_s < 10
    assert {name: table.columns[0].samples for name, table in tables.items()} == {
        "t": ("1",),
        "good": ("1",),
        "later": (),
    }
