"""A NOT IN finds rows beside empty cells, and stays as it is where there are none."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tools.databases.open_database import open_database
from tools.repair.columns.skip_nulls import skip_nulls
from tools.repair.repair_query import repair_query
from tools.result import Limits, Result
from tools.schema import Schema

WITHOUT = "SELECT name FROM customer WHERE NOT id IN (SELECT customer FROM orders{})"


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        (WITHOUT.format(""), WITHOUT.format(" WHERE NOT customer IS NULL")),
        (WITHOUT.format(" WHERE paid > 3"), WITHOUT.format(" WHERE paid > 3 AND NOT customer IS NULL")),
        ("SELECT name FROM customer WHERE id IN (SELECT customer FROM orders)", None),
        ("SELECT name FROM customer WHERE NOT id IN (1, 2)", None),
        (WITHOUT.format(" GROUP BY customer"), None),
        (WITHOUT.format(" LIMIT 3"), None),
        ("SELECT name FROM customer WHERE NOT id IN (SELECT MAX(customer) FROM orders)", None),
        (WITHOUT.format("("), None),
    ],
)
def test_empty_cells_are_left_out(sql: str, then: str | None) -> None:
    assert skip_nulls(sql, Schema((), "sqlite"), lambda query: True) == then
    assert skip_nulls(sql, Schema((), "sqlite"), lambda query: False) is None


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
@pytest.mark.parametrize("buyer", [None, 1])
def test_the_database_says_whether_there_are_any(tmp_path: Path, engine: str, buyer: int | None) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as made:
        made.execute("CREATE TABLE customer (id INTEGER, name TEXT)")
        made.execute("CREATE TABLE orders (customer INTEGER)")
        made.executemany("INSERT INTO customer VALUES (?, ?)", [(1, "Ann"), (2, "Bob")])
        made.executemany("INSERT INTO orders VALUES (?)", [(1,), (buyer,)])
        made.commit()
    sql = "SELECT name FROM customer WHERE id NOT IN (SELECT customer FROM orders)"
    with closing(open_database([tmp_path / "shop.sqlite"], engine=engine)) as database:  # type: ignore[arg-type]
        fixed, error = repair_query(sql, database, (), Limits(), "Who never ordered?", ("nulls",))
        result = database.execute(fixed, Limits())
    assert error is None
    assert (fixed == sql) is (buyer is not None)
    assert isinstance(result, Result)
    assert list(result.rows) == [("Bob",)]
