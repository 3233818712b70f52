"""Tables of any schema go by bare names, and what runs names their schemas."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import duckdb
import pytest

from tools.databases.annotations import Annotations, Relation, with_annotations
from tools.databases.database import Database
from tools.databases.open_database import BareNamedDatabase, open_database, restricted
from tools.result import QueryError, Result
from tools.schema import ForeignKey
from tools.sql.spelling import qualified
from tools.sql.to_sqlite import bare_names


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute('CREATE SCHEMA sales; CREATE SCHEMA old; CREATE SCHEMA "two words"')
        connection.execute("CREATE TABLE days (day INTEGER); INSERT INTO days VALUES (1)")
        connection.execute("CREATE TABLE sales.users (uid INTEGER PRIMARY KEY, name VARCHAR)")
        connection.execute("INSERT INTO sales.users VALUES (1, 'ann'), (2, 'bo')")
        connection.execute("CREATE TABLE sales.orders (oid INTEGER, uid INTEGER REFERENCES sales.users (uid))")
        connection.execute("INSERT INTO sales.orders VALUES (1, 1), (2, 1)")
        connection.execute("CREATE TABLE old.days (day INTEGER); INSERT INTO old.days VALUES (7), (8)")
        connection.execute('CREATE TABLE "two words"."Order" (n INTEGER); INSERT INTO "two words"."Order" VALUES (5)')
    database = open_database(path)
    yield database
    database.close()


def rows(outcome: Result | QueryError) -> tuple[tuple[object, ...], ...]:
    assert isinstance(outcome, Result), outcome
    return outcome.rows


def test_names_are_bare_where_they_are_unique(shop: Database) -> None:
    assert [table.name for table in shop.schema().tables] == ["days", "old__days", "users", "orders", "Order"]
    orders = shop.schema().table("sales.orders")
    assert orders is shop.schema().table("orders") and orders is not None
    assert orders.foreign_keys == (ForeignKey(("uid",), "users", ("uid",)),)


@pytest.mark.parametrize(
    ("sql", "text", "found"),
    [
        ("SELECT COUNT(*) FROM users", "SELECT COUNT(*) FROM sales.users", 2),
        ("SELECT COUNT(*) FROM sales.users", "SELECT COUNT(*) FROM sales.users", 2),
        ("SELECT max(day) FROM days", "SELECT max(day) FROM days", 1),
        ("SELECT max(old__days.day) FROM old__days", "SELECT max(old__days.day) FROM old.days AS old__days", 8),
        ("SELECT max(d.day) FROM old__days AS d", "SELECT max(d.day) FROM old.days AS d", 8),
        ('SELECT n FROM "order"', 'SELECT n FROM "two words"."Order"', 5),
        ("WITH users AS (SELECT 3 AS n) SELECT n FROM users", "WITH users AS (SELECT 3 AS n) SELECT n FROM users", 3),
        (
            "SELECT count(*) FROM users JOIN orders ON orders.uid = users.uid -- FROM users",
            "SELECT count(*) FROM sales.users JOIN sales.orders ON orders.uid = users.uid -- FROM users",
            2,
        ),
    ],
)
def test_statements_are_spelled_out(shop: Database, sql: str, text: str, found: int) -> None:
    assert qualified(sql, shop.schema()).text == text
    assert rows(shop.execute(sql)) == ((found,),)
    assert shop.explain(sql) is None


def test_prompts_show_bare_names(shop: Database) -> None:
    schema = shop.schema()
    assert bare_names("SELECT name FROM sales.users WHERE sales.users.uid = 1", schema) == (
        "SELECT name FROM users WHERE users.uid = 1"
    )
    assert bare_names("SELECT days.day FROM old.days", schema) == "SELECT days.day FROM old__days AS days"


def test_an_error_says_where_it_is_in_the_statement_that_was_given(shop: Database) -> None:
    sql = "SELECT count(*) FROM users JOIN orders ON orders.uid = users.user_id"
    problem = shop.explain(sql)
    assert problem is not None and problem.position is not None
    assert sql[problem.position :].startswith(("user_id", "users.user_id"))


def test_what_is_hidden_stays_hidden_under_every_name(tmp_path: Path, shop: Database) -> None:
    """Guards against a bare name that leads past what may be seen: the names are settled, then looked at by the locks."""
    seen = restricted(shop, (), ("sales.orders", "days"))
    assert isinstance(seen, BareNamedDatabase)
    assert {table.path[-1] if table.path else table.name for table in seen.schema().tables} == {
        "days",
        "users",
        "Order",
    }
    assert rows(seen.execute("SELECT max(day) FROM days")) == ((8,),)  # the one that may be seen
    for sql in ("SELECT * FROM orders", "SELECT * FROM sales.orders", "SELECT * FROM main.days"):
        assert isinstance(seen.execute(sql), QueryError), sql


def test_notes_may_name_a_table_either_way(shop: Database) -> None:
    notes = Annotations(
        (Relation(("sales.orders", "oid"), ("days", "day")),), {("users", "name"): "who", ("sales.orders", "oid"): "n"}
    )
    schema = with_annotations(shop, notes).schema()
    orders, users = schema.table("orders"), schema.table("users")
    assert orders is not None and users is not None
    assert ForeignKey(("oid",), "days", ("day",)) in orders.foreign_keys
    assert (users.columns[1].comment, orders.columns[0].comment) == ("who", "n")


def test_a_statement_that_is_too_long_is_refused_unread(shop: Database) -> None:
    """It was parsed for its names before the guard saw its length: 400 kB took 6 s, outside every deadline."""
    started = perf_counter()
    outcome = shop.execute("SELECT 1 FROM users WHERE " + " OR ".join(["uid = 1"] * 40_000))
    assert isinstance(outcome, QueryError) and outcome.kind == "refused"
    assert perf_counter() - started < 2
