"""Guards the templates for amounts and times against SQL that does not mean the question, that does not run, or that
the agent's grammar forbids."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from agent.grammar.machine import beginning
from agent.grammar.scope import catalog_of
from eval.datasets.gold_databases import TrainingDatabase
from eval.datasets.gold_sql import normalise, sql_text
from tests.agent.grammar.test_grammar_gold import accepted_until
from tools.databases.open_database import open_database
from tools.sql.from_sqlite import from_sqlite
from training.data.options import Tally
from training.data.parts import TEMPLATED_KINDS as KINDS
from training.data.parts import templated
from training.templates.labels import Author, Labels, counted, is_added, said_when

_SQL = """
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, first_name TEXT, last_name TEXT, birth_date DATE);
CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT, price REAL, quantity_in_stock INTEGER, colour TEXT);
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, order_date DATE, status TEXT,
  customer_id INTEGER REFERENCES customer(customer_id));
CREATE TABLE order_item (order_item_id INTEGER PRIMARY KEY, quantity INTEGER, order_id INTEGER REFERENCES orders(order_id),
  product_id INTEGER REFERENCES product(product_id));
CREATE TABLE film (film_id INTEGER PRIMARY KEY, title TEXT, release_year INTEGER, gross REAL, awards INTEGER);
CREATE TABLE payment (payment_id INTEGER PRIMARY KEY, payment_date TIMESTAMP, amount REAL,
  customer_id INTEGER REFERENCES customer(customer_id));
INSERT INTO customer VALUES (1, 'Ann', 'Ash', '1980-02-03'), (2, 'Bo', 'Elm', '1975-04-05'), (3, 'Cy', 'Oak', '1990-04-01');
INSERT INTO product VALUES (1, 'Pen', 2, 0, 'blue'), (2, 'Ink', 5, 9, 'black'), (3, 'Pad', 3, 4, 'blue'),
  (4, 'Pen', 20, 7, 'black');
INSERT INTO orders VALUES (1, '2019-03-05', 'Shipped', 1), (2, '2019-03-09', 'Cancelled', 2), (3, '2020-12-24', 'Shipped', 1),
  (4, '2021-03-01', 'Shipped', 3), (5, '2019-07-30', 'Cancelled', 3);
INSERT INTO order_item VALUES (1, 3, 1, 1), (2, 1, 1, 2), (3, 8, 2, 3), (4, 2, 3, 4), (5, 6, 4, 2), (6, 1, 5, 1);
INSERT INTO film VALUES (1, 'Sea', 1999, 10.5, 2), (2, 'Sky', 2004, 7, 0), (3, 'Sun', 2004, 12, 5), (4, 'Sod', 2010, 3, 1);
INSERT INTO payment VALUES (1, '2019-03-06 10:00:00', 11, 1), (2, '2019-04-09 11:30:00', 24, 2),
  (3, '2020-12-29 09:00:00', 40, 1);
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labels]:
    path = tmp_path_factory.mktemp("shop") / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_SQL)
    engine = open_database(path, engine="sqlite")
    database = TrainingDatabase("shop", engine.schema(), engine, has_rows=True)
    yield Labels(database)
    database.close()


@pytest.fixture(scope="module")
def said(shop: Labels) -> dict[str, dict[str, str]]:
    """SQL by question, over many seeds, by kind."""
    return {kind: _asked(shop, kind, 160) for kind in ("amounts", "times")}


def _asked(labels: Labels, kind: str, seeds: int) -> dict[str, str]:
    made = {asked.text: asked.sql for seed in range(seeds) for asked in KINDS[kind](Author(labels, Random(seed)))}
    schema = labels.database.schema
    return {text: sql_text(normalise(sql, schema)) for text, sql in made.items()}


_LINES = "FROM order_item JOIN product ON order_item.product_id = product.product_id"
_REVENUE = "SUM(product.price * order_item.quantity)"


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("What is our total revenue?", f"SELECT {_REVENUE} {_LINES}"),
        (
            "How much revenue did we make with each product?",
            f"SELECT product.name, {_REVENUE} {_LINES} GROUP BY product.product_id",
        ),
        (
            "Which customer spent the most?",
            f"SELECT customer.first_name, customer.last_name {_LINES} JOIN orders ON order_item.order_id = orders.order_id "
            f"JOIN customer ON orders.customer_id = customer.customer_id "
            f"GROUP BY customer.customer_id ORDER BY {_REVENUE} DESC LIMIT 1",
        ),
        ("Add up the amount of all payments.", "SELECT SUM(amount) FROM payment"),
        ("What is the total number of awards of all films?", "SELECT SUM(awards) FROM film"),
        ("Average price of products by colour", "SELECT colour, AVG(price) FROM product GROUP BY colour"),
        (
            "Which products are more expensive than average? Show their name.",
            "SELECT name FROM product WHERE price > (SELECT AVG(price) FROM product)",
        ),
        (
            "What percentage of the orders are cancelled?",
            "SELECT 100.0 * SUM(CASE WHEN status = 'Cancelled' THEN 1 ELSE 0 END) / COUNT(*) FROM orders",
        ),
        ("Which products are sold out? List the names.", "SELECT name FROM product WHERE quantity_in_stock = 0"),
        ("How many products are in stock?", "SELECT COUNT(*) FROM product WHERE quantity_in_stock > 0"),
        (
            "Which names occur more than once among the products?",
            "SELECT name FROM product GROUP BY name HAVING COUNT(*) > 1",
        ),
        ("How many different colours do the products have?", "SELECT COUNT(DISTINCT colour) FROM product"),
        (
            "How far apart are the lowest and the highest gross of films?",
            "SELECT MAX(gross) - MIN(gross) FROM film",
        ),
    ],
)
def test_amounts(said: dict[str, dict[str, str]], text: str, sql: str) -> None:
    assert said["amounts"][text] == sql


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        (
            "in 2019",
            "SELECT COUNT(*) FROM orders WHERE STRFTIME('%Y', order_date) = '2019'",
        ),
        (
            "in March 2019",
            "SELECT COUNT(*) FROM orders WHERE STRFTIME('%Y-%m', order_date) = '2019-03'",
        ),
        (
            "in December",
            "SELECT COUNT(*) FROM orders WHERE STRFTIME('%m', order_date) = '12'",
        ),
        (
            "per month",
            "SELECT STRFTIME('%Y-%m', order_date), COUNT(*) FROM orders GROUP BY STRFTIME('%Y-%m', order_date)",
        ),
        (
            "most orders placed",
            "SELECT STRFTIME('%Y', order_date) FROM orders GROUP BY STRFTIME('%Y', order_date) ORDER BY COUNT(*) DESC LIMIT 1",
        ),
        ("last order placed", "SELECT MAX(order_date) FROM orders"),
        ("before 2010", "SELECT COUNT(*) FROM film WHERE release_year < 2010"),
        ("each year", "SELECT release_year, COUNT(*) FROM film GROUP BY release_year"),
        (
            "customers born in 1980",
            "SELECT first_name, last_name FROM customer WHERE STRFTIME('%Y', birth_date) = '1980'",
        ),
        (
            "amount of payments per year",
            "SELECT STRFTIME('%Y', payment_date), SUM(amount) FROM payment GROUP BY STRFTIME('%Y', payment_date)",
        ),
    ],
)
def test_times(said: dict[str, dict[str, str]], text: str, sql: str) -> None:
    assert [each for each, own in said["times"].items() if text in each and own == sql]


def test_a_day_with_a_time_is_compared_only_where_texts_decide_rightly(said: dict[str, dict[str, str]]) -> None:
    """'2019-03-06 10:00:00' <= '2019-03-06' is false."""
    tests = [sql.split(" WHERE ")[1] for sql in said["times"].values() if " WHERE payment_date" in sql]
    assert tests and all(test.split()[1] in ("<", ">=") for test in tests)


@pytest.mark.parametrize("kind", ["amounts", "times"])
def test_every_query_runs(shop: Labels, kind: str) -> None:
    tally = Tally()
    assert templated(shop, {kind: 1.0}, Random(0), tally)
    assert not [reason for reason in tally.left_out if "does not run" in reason or "sqlglot" in reason]


@pytest.mark.parametrize("kind", ["amounts", "times"])
def test_the_grammar_accepts_all_in_both_dialects(shop: Labels, said: dict[str, dict[str, str]], kind: str) -> None:
    schema = shop.database.schema
    for sql in sorted(set(said[kind].values()))[::6]:
        for dialect, written in (("sqlite", sql), ("duckdb", from_sqlite(sql, schema))):
            assert accepted_until(beginning(catalog_of(schema, dialect)), written) is None, written


def test_names_of_amounts_do_where_there_are_no_types_and_rows(tmp_path: Path) -> None:
    """BIRD's training databases are known by the names of their columns alone."""
    file = tmp_path / "typed.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE order_line (line_id, unit_price, quantity_ordered, sales_channel);")
    engine = open_database(file, engine="sqlite")
    labels = Labels(TrainingDatabase("bare", engine.schema(), engine, has_rows=False))
    said = _asked(labels, "amounts", 10)
    assert said["What is our total revenue?"] == "SELECT SUM(unit_price * quantity_ordered) FROM order_line"
    assert not [sql for sql in said.values() if "SUM(sales_channel" in sql or "AVG(sales_channel" in sql]
    assert not _asked(labels, "times", 3)
    engine.close()


def test_labels_that_are_added_up_counted_and_dated() -> None:
    assert is_added("goals") and is_added("amount paid") and not is_added("age") and not is_added("average attendance")
    assert counted("awards") and not counted("total sales")
    placed = [said_when(label, "order") for label in ("date order placed", "order date")]
    assert all(said and said["verb"] == "were placed" for said in placed)
    assert said_when("date from", "address") is None and said_when("date claim settled", "policy") is None
