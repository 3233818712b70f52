"""What the data say against a query. Guards against warnings that the data do not bear out, as much as against silence."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tools.databases.database import Database
from tools.databases.open_database import open_database, restricted
from tools.result import Result
from tools.review import Finding, Review, TableRead, repeated_by_joins, review

SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name VARCHAR, city VARCHAR);
CREATE TABLE sale (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customer (id), total INTEGER, coupon VARCHAR);
CREATE TABLE item (id INTEGER PRIMARY KEY, sale_id INTEGER REFERENCES sale (id), price INTEGER);
INSERT INTO customer VALUES (1, 'Ada', 'Rome'), (2, 'Bo', NULL), (3, 'Cy', 'Oslo');
INSERT INTO sale VALUES (11, 1, 30, 'A'), (12, 1, 20, NULL), (13, 2, 30, 'B');
INSERT INTO item VALUES (101, 11, 10), (102, 11, 20), (103, 12, 20), (104, 13, 30);
"""


@pytest.fixture(params=["sqlite", "duckdb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / f"shop.{request.param}"
    connection = sqlite3.connect(path) if request.param == "sqlite" else duckdb.connect(str(path))
    for statement in SHOP.split(";"):
        connection.execute(statement)
    if isinstance(connection, sqlite3.Connection):
        connection.commit()
    connection.close()
    opened = open_database(path, engine=request.param)
    yield opened
    opened.close()


def reviewed(database: Database, sql: str) -> Review:
    return review(sql, database, database.execute)


def warned(database: Database, sql: str) -> list[Finding]:
    return [each for each in reviewed(database, sql).findings if each.severity != "note"]


FAULTS = [
    (
        "SELECT SUM(s.total) FROM sale s JOIN item i ON i.sale_id = s.id",
        "multiplied_rows",
        "1 row of sale several times",
    ),
    ("SELECT customer_id, AVG(total) FROM sale JOIN item ON sale_id = sale.id GROUP BY 1", "multiplied_rows", "AVG"),
    (
        "WITH big AS (SELECT * FROM item WHERE price > 5) SELECT SUM(total) FROM sale s JOIN big ON big.sale_id = s.id",
        "multiplied_rows",
        "with big",
    ),
    ("SELECT c.name FROM customer c JOIN sale s ON s.customer_id = c.id", "repeated_rows", "1 row of customer"),
    (
        "SELECT c.name, s.total FROM customer c JOIN sale s ON s.id = c.id",
        "join_off_keys",
        "sale.customer_id = customer.id",
    ),
    (
        "SELECT c.name, i.price FROM customer c JOIN item i ON i.price = c.id",
        "join_off_keys",
        "0% of the values in common",
    ),
    ("SELECT name FROM customer WHERE city = NULL", "null_comparison", "IS NULL"),
    ("SELECT name FROM customer WHERE name NOT IN (SELECT coupon FROM sale)", "null_comparison", "1 rows of its list"),
    ("SELECT name FROM customer WHERE city <> 'Rome'", "null_left_out", "1 of 3 rows (33%)"),
    ("SELECT COUNT(coupon) FROM sale", "null_left_out", "COUNT passes over"),
    ("SELECT id FROM sale ORDER BY total DESC LIMIT 1", "tie_at_limit", "Rows 1 and 2 tie in total"),
    ("SELECT sale_id FROM item GROUP BY 1 ORDER BY COUNT(*) LIMIT 1", "tie_at_limit", "tie in COUNT(*)"),
    ("SELECT nam FROM customer", "does_not_run", "name"),
    ("DELETE FROM customer", "does_not_run", "only SELECT"),
]


@pytest.mark.parametrize(("sql", "kind", "says"), FAULTS)
def test_a_fault_is_named_and_its_evidence_runs(shop: Database, sql: str, kind: str, says: str) -> None:
    found = [each for each in warned(shop, sql) if each.kind == kind]
    assert found and says in found[0].sentence, reviewed(shop, sql)
    for each in found:
        outcome = shop.execute(each.evidence) if each.evidence else None
        assert outcome is None or isinstance(outcome, Result), outcome


RIGHT = [
    "SELECT SUM(i.price) FROM sale s JOIN item i ON i.sale_id = s.id",
    "SELECT COUNT(*) FROM customer c JOIN sale s ON s.customer_id = c.id",
    "SELECT COUNT(DISTINCT c.id) FROM customer c JOIN sale s ON s.customer_id = c.id",
    "SELECT c.name, COUNT(s.id) FROM customer c LEFT JOIN sale s ON s.customer_id = c.id GROUP BY c.id, c.name",
    "SELECT DISTINCT c.name FROM customer c JOIN sale s ON s.customer_id = c.id",
    "SELECT SUM(CASE WHEN c.city = 'Rome' THEN 1 ELSE 0 END) FROM customer c JOIN sale s ON s.customer_id = c.id",
    "SELECT s.id, SUM(s.total) FROM sale s JOIN item i ON i.sale_id = s.id WHERE i.price > 15 GROUP BY s.id",
    "SELECT name FROM customer WHERE city <> 'Rome' OR city IS NULL",
    "SELECT name FROM customer c WHERE NOT EXISTS (SELECT 1 FROM sale WHERE customer_id = c.id)",
    "SELECT total FROM sale ORDER BY total DESC LIMIT 1",
    "SELECT id FROM sale ORDER BY total LIMIT 1",
]


@pytest.mark.parametrize("sql", RIGHT)
def test_a_right_query_is_not_warned_of(shop: Database, sql: str) -> None:
    assert warned(shop, sql) == []


@pytest.mark.parametrize(
    ("question", "is_told"),
    [
        ("How many customers have bought something?", True),
        ("What is the total number of different customers with a sale?", True),
        ("How many customer purchases are there?", False),
        ("How many sales are there with a customer?", False),
        ("Name and customer number of customers with sales", False),
    ],
)
def test_what_the_question_counts_comes_once(shop: Database, question: str, is_told: bool) -> None:
    """Guards against the number of a join's rows for the number of customers, and against compounds taken for the table."""
    sql = "SELECT COUNT(*) FROM customer c JOIN sale s ON s.customer_id = c.id"
    found = repeated_by_joins(sql, shop, shop.execute, question)
    told = ["The question asks for the number of customer; this counts 1 row of customer several times"] * is_told
    assert [each.sentence.partition(",")[0] for each in found] == told


@pytest.mark.parametrize(
    ("question", "sql", "is_told"),
    [
        ("How many customers have bought something?", "SELECT COUNT(*) FROM sale", True),
        ("How many customers have bought something?", "SELECT COUNT(DISTINCT customer_id) FROM sale", False),
        ("How many customers have bought something?", "SELECT COUNT(*) FROM sale WHERE id = 1", False),
        ("How many sales are there?", "SELECT COUNT(*) FROM sale", False),
    ],
)
def test_a_table_that_is_only_referred_to_is_counted_once(
    shop: Database, question: str, sql: str, is_told: bool
) -> None:
    """Guards against the number of sales for the number of customers, where no customer is read."""
    found = repeated_by_joins(sql, shop, shop.execute, question)
    assert [each.kind for each in found] == ["multiplied_rows"] * is_told


def test_two_branches_of_a_join_multiply_a_count(shop: Database) -> None:
    sql = """SELECT COUNT(*) FROM sale a JOIN item i ON i.sale_id = a.id JOIN sale b ON b.customer_id = a.customer_id
        WHERE a.customer_id = 1"""
    assert "multiplied_rows" in {each.kind for each in warned(shop, sql)}


def test_what_it_reads_and_what_it_costs_are_said(shop: Database) -> None:
    found = reviewed(shop, "SELECT name, total FROM customer c JOIN sale ON customer_id = c.id")
    assert set(found.reads) == {TableRead("customer", ("name", "id")), TableRead("sale", ("total", "customer_id"))}
    assert "cost" in {each.kind for each in found.findings}


def test_hidden_columns_stay_hidden(shop: Database) -> None:
    """A counter-query is read by the same guard; a plan, which might name hidden tables, is not told at all."""
    seen = restricted(shop, (), ("customer.city", "item"))
    assert reviewed(seen, "SELECT name FROM customer WHERE city <> 'Rome'").error
    found = reviewed(seen, "SELECT c.name FROM customer c JOIN sale s ON s.customer_id = c.id")
    assert found.error is None and "repeated_rows" in {each.kind for each in found.findings}
    assert "cost" not in {each.kind for each in found.findings}
