"""Databases behind SQLAlchemy: reflection and the second lock, on SQLite here and on every server that a URL is given for.

`SQLAGENT_TEST_URLS` may name empty PostgreSQL or MySQL databases, separated by blanks, for an account that may create tables.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tools.result import Limits, QueryError
from tools.schema import ForeignKey
from tools.sqlalchemy_database import SQLAlchemyDatabase

URLS = ["sqlite", *os.environ.get("SQLAGENT_TEST_URLS", "").split()]


@pytest.fixture(params=URLS)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    url = f"sqlite:///{tmp_path}/shop.sqlite" if request.param == "sqlite" else request.param
    engine, tables = sa.create_engine(url), sa.MetaData()
    item = sa.Table(
        "item", tables, sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String(30), nullable=False),
        sa.Column("photo", sa.LargeBinary), sa.Column("price", sa.Numeric(9, 2)),
    )  # fmt: skip
    sa.Table("sale", tables, sa.Column("item_id", sa.ForeignKey("item.id")), sa.Column("day", sa.Date))
    tables.drop_all(engine)
    tables.create_all(engine)
    with engine.begin() as connection:
        connection.execute(item.insert(), [{"id": i, "name": f"n{i}", "photo": b"x", "price": i} for i in range(1, 6)])
        connection.exec_driver_sql("CREATE VIEW cheap AS SELECT name FROM item WHERE price < 3")
    yield engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW cheap")
    tables.drop_all(engine)
    engine.dispose()


@pytest.fixture
def database(writer: sa.Engine) -> Iterator[SQLAlchemyDatabase]:
    opened = SQLAlchemyDatabase(sa.create_engine(writer.url), "shop")
    yield opened
    opened.close()


def test_reflection(database: SQLAlchemyDatabase) -> None:
    item, sale, cheap = database.schema().tables
    assert [table.name for table in (item, sale, cheap)] == ["item", "sale", "cheap"]
    assert (item.row_count, sale.row_count, cheap.row_count) == (5, 0, None)
    assert [(column.name, column.primary_key, column.nullable) for column in item.columns] == [
        ("id", True, False), ("name", False, False), ("photo", False, True), ("price", False, True),
    ]  # fmt: skip
    assert (item.columns[1].samples, item.columns[2].samples) == (("n1", "n2", "n3"), ())
    assert item.columns[1].type.startswith("VARCHAR(30")
    assert sale.foreign_keys == (ForeignKey(("item_id",), "item", ("id",)),)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM item",
        "INSERT INTO item (id, name) VALUES (9, 'eve')",
        "UPDATE item SET name = 'eve'",
        "DROP TABLE sale",
        "CREATE TABLE stolen (a INTEGER)",
        "SELECT 1; DELETE FROM item",
    ],
)
def test_the_second_lock_alone(database: SQLAlchemyDatabase, writer: sa.Engine, sql: str) -> None:
    """With the guard gone the read-only transaction, and the rollback behind it, must still keep every row."""
    assert isinstance(database._run(sql, Limits()), QueryError)
    assert isinstance(database.execute(sql), QueryError)
    with writer.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM item").scalar() == 5
        assert set(sa.inspect(connection).get_table_names()) == {"item", "sale"}


def test_a_query_and_its_cap(database: SQLAlchemyDatabase) -> None:
    outcome = database.execute("SELECT id, name FROM item ORDER BY id", Limits(max_rows=2))
    assert not isinstance(outcome, QueryError), outcome
    assert (outcome.columns, outcome.rows, outcome.truncated) == (("id", "name"), ((1, "n1"), (2, "n2")), True)
    assert outcome.types == ("INTEGER", "TEXT")


def test_signs_in_texts_mean_themselves(database: SQLAlchemyDatabase) -> None:
    """Guards against drivers that take them for parameters, each in its own way."""
    outcome = database.execute("SELECT ':id', '100%', '%s', 'why?' FROM item WHERE name LIKE 'n1%'")
    assert not isinstance(outcome, QueryError), outcome
    assert outcome.rows == ((":id", "100%", "%s", "why?"),)
