"""Equal rows have one order in DuckDB, whatever its threads do; nothing else changes."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tools.databases.database import Database
from tools.databases.guarded_database import settle_ties
from tools.databases.open_database import open_database, restricted
from tools.guard.guard import ApprovedQuery, judged
from tools.result import QueryError, Result

ROWS = 300_000  # more than one row group, so that several threads share the work


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Sales whose prices and shops recur, in no order; the view has the rows of the table."""
    path = tmp_path_factory.mktemp("ties") / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            f"""CREATE TABLE sales AS SELECT (range * 7919) % {ROWS} AS id, 'shop ' || (range * 31 % 1000) AS shop,
            range % 10 AS price FROM range({ROWS})"""
        )
        connection.execute("CREATE VIEW sold AS SELECT * FROM sales")
        connection.execute("CREATE TABLE shops AS SELECT DISTINCT shop AS name FROM sales ORDER BY name DESC")
    database = open_database(path)
    yield database
    database.close()


def settled(sql: str, database: Database) -> str:
    statement = judged(sql, "duckdb", database.schema())
    assert isinstance(statement, ApprovedQuery)
    changed = settle_ties(statement, database.schema())
    return changed.text if changed else sql


@pytest.mark.parametrize(
    ("sql", "runs"),
    [
        ("SELECT shop FROM sales GROUP BY shop ORDER BY count(*) DESC LIMIT 1",
         "SELECT shop FROM sales GROUP BY shop ORDER BY count(*) DESC, shop DESC LIMIT 1"),
        ("SELECT shop FROM sales GROUP BY shop, price ORDER BY count(*)",
         "SELECT shop FROM sales GROUP BY shop, price ORDER BY count(*), shop, price"),
        ("SELECT id FROM sales ORDER BY price", 'SELECT id FROM sales ORDER BY price, "sales".rowid'),
        ("SELECT shop, count(*) FROM sales GROUP BY 1 ORDER BY 2 LIMIT 3 OFFSET 2",
         "SELECT shop, count(*) FROM sales GROUP BY 1 ORDER BY 2, 1 LIMIT 3 OFFSET 2"),
        ("SELECT id FROM sales ORDER BY price LIMIT 1", 'SELECT id FROM sales ORDER BY price, "sales".rowid LIMIT 1'),
        ("SELECT T1.id FROM sales AS T1 JOIN shops AS T2 ON T1.shop = T2.name ORDER BY T1.price LIMIT 1",
         'SELECT T1.id FROM sales AS T1 JOIN shops AS T2 ON T1.shop = T2.name '
         'ORDER BY T1.price, "T1".rowid, "T2".rowid LIMIT 1'),
        ("SELECT id FROM sold ORDER BY price LIMIT 1", "SELECT id FROM sold ORDER BY price, 1 LIMIT 1"),
        ("SELECT id, shop FROM (SELECT * FROM sales) AS s ORDER BY price LIMIT 1",
         "SELECT id, shop FROM (SELECT * FROM sales) AS s ORDER BY price, 1, 2 LIMIT 1"),
        ("SELECT DISTINCT price, shop FROM sales ORDER BY price OFFSET 3",
         "SELECT DISTINCT price, shop FROM sales ORDER BY price, 1, 2 OFFSET 3"),
        ("SELECT id FROM sales UNION SELECT price FROM sales ORDER BY 1 LIMIT 1",
         "SELECT id FROM sales UNION SELECT price FROM sales ORDER BY 1 LIMIT 1"),
        ("SELECT shop, price, count(*) FROM sales GROUP BY ROLLUP (shop, price) ORDER BY 3 FETCH FIRST 2 ROWS ONLY",
         "SELECT shop, price, count(*) FROM sales GROUP BY ROLLUP (shop, price) ORDER BY 3, 1, 2 FETCH FIRST 2 ROWS ONLY"),
        ("SELECT id FROM sales WHERE shop = (SELECT shop FROM sales ORDER BY price LIMIT 1) ORDER BY id LIMIT 2",
         'SELECT id FROM sales WHERE shop = (SELECT shop FROM sales ORDER BY price, "sales".rowid LIMIT 1) '
         'ORDER BY id, "sales".rowid LIMIT 2'),
    ],
)  # fmt: skip
def test_what_is_added(shop: Database, sql: str, runs: str) -> None:
    assert settled(sql, shop) == runs
    assert isinstance(shop.execute(sql), Result)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM sales LIMIT 3",  # no order was asked for
        "SELECT id FROM (SELECT id FROM sales ORDER BY price) AS s",  # an order that nobody sees
        "SELECT id FROM sales ORDER BY ALL LIMIT 1",
        "SELECT * FROM sold ORDER BY price LIMIT 1",  # how many columns there are is not said
        "SELECT DISTINCT ON (price) id FROM sales ORDER BY price LIMIT 1",
        "SELECT id, row_number() OVER (ORDER BY price) FROM sales",
        "SELECT id FROM sales ORDER BY (SELECT name FROM shops LIMIT 1) LIMIT 1",
    ],
)
def test_what_is_left_alone(shop: Database, sql: str) -> None:
    assert settled(sql, shop) == sql


def test_rows_of_equal_price_come_in_the_order_of_the_table(shop: Database) -> None:
    result = shop.execute("SELECT id FROM sales ORDER BY price LIMIT 3")
    assert isinstance(result, Result)
    assert result.rows == ((0,), (79190 % ROWS,), (158380 % ROWS,))
    assert (result.columns, result.tie_keys) == (("id",), ('"sales".rowid',))


def test_equal_groups_come_in_the_order_of_their_keys(shop: Database) -> None:
    """In SQLite's direction, so that an answer does not depend on the engine."""
    for direction, first in (("", "shop 0"), ("DESC", "shop 999")):
        result = shop.execute(f"SELECT shop FROM sales GROUP BY shop ORDER BY count(*) {direction} LIMIT 1")
        assert isinstance(result, Result)
        assert result.rows == ((first,),)


def test_both_engines_take_the_same_of_equal_groups(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.sqlite") as made:
        made.execute("CREATE TABLE sales (shop TEXT, price INTEGER)")
        made.executemany(
            "INSERT INTO sales VALUES (?, ?)", [("b", 1), ("a", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]
        )
    for sql in (
        "SELECT shop FROM sales GROUP BY shop ORDER BY COUNT(*) DESC",
        "SELECT shop FROM sales GROUP BY shop ORDER BY COUNT(*) LIMIT 2",
        "SELECT shop FROM sales ORDER BY price DESC LIMIT 2",
        "SELECT shop, price FROM sales ORDER BY price",
    ):
        found = []
        for engine in ("sqlite", "duckdb"):
            database = open_database(tmp_path / "shop.sqlite", engine=engine)
            result = database.execute(sql)
            database.close()
            assert isinstance(result, Result)
            found.append(result.rows)
        assert found[0] == found[1]


def test_the_same_rows_every_time(shop: Database) -> None:
    sql = "SELECT shop, price, count(*) FROM sold GROUP BY ALL ORDER BY count(*) LIMIT 5"
    found = {result.rows for _ in range(5) if isinstance(result := shop.execute(sql), Result)}
    assert len(found) == 1


def test_a_query_that_takes_no_keys_runs_as_it_is(shop: Database) -> None:
    """One row for the whole table: its order needs nothing, and DuckDB allows no row's place there."""
    result = shop.execute("SELECT max(price) FROM sales ORDER BY 1 LIMIT 1")
    assert isinstance(result, Result)
    assert (result.rows, result.tie_keys) == (((9,),), ())


def test_an_error_keeps_its_place(shop: Database) -> None:
    sql = "SELECT idd FROM sales ORDER BY price LIMIT 1"
    error = shop.execute(sql)
    assert isinstance(error, QueryError)
    assert (error.kind, error.position) == ("unknown_column", sql.index("idd"))


def test_hidden_columns_settle_nothing(tmp_path: Path) -> None:
    path = tmp_path / "people.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE people (name VARCHAR, age INTEGER, wage INTEGER)")
        connection.execute("INSERT INTO people VALUES ('Zoe', 3, 1), ('Ann', 3, 9), ('Bob', 4, 2)")
    database = restricted(open_database(path), (), ("people.wage",))
    try:
        result = database.execute("SELECT name FROM people ORDER BY age LIMIT 1")
        assert isinstance(result, Result)
        assert (result.rows, result.tie_keys) == ((("Ann",),), ("1",))
    finally:
        database.close()
