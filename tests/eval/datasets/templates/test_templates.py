"""Guards questions from templates against wrong directions, unnatural words and results that say nothing.

Guards the templates for amounts and times against SQL that does not mean the question, that does not run, or that
the agent's grammar forbids.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from agent.grammar.machine import beginning
from agent.grammar.scope import catalog_of
from eval.datasets.gold_databases import TrainingDatabase
from eval.datasets.gold_sql import GoldError, normalise, sql_text
from tests.agent.grammar.test_grammar_gold import accepted_until
from tools.databases.open_database import open_database
from tools.sql.from_sqlite import from_sqlite
from training.data.build import build
from training.data.examples import Item
from training.data.options import Options, Tally
from training.data.parts import TEMPLATED_KINDS as KINDS
from training.data.parts import telling, templated
from training.packs.groups import read_groups
from training.templates.labels import Asked, Author, Labels, counted, is_added, said_when
from training.templates.times import meaning

_SQL = """
CREATE TABLE harbour (harbour_id INTEGER PRIMARY KEY, name TEXT, depth REAL, opening_year INTEGER);
CREATE TABLE crew (crew_id INTEGER PRIMARY KEY, name TEXT, age INTEGER, birth_year INTEGER);
CREATE TABLE boat (boat_id INTEGER PRIMARY KEY, name TEXT, length REAL, status TEXT, insured_yn TEXT, sail TEXT,
  harbour_id INTEGER REFERENCES harbour(harbour_id));
CREATE TABLE sails_on (crew_id INTEGER REFERENCES crew(crew_id), boat_id INTEGER REFERENCES boat(boat_id));
CREATE TABLE sighting (sighting_id INTEGER PRIMARY KEY, title TEXT, weather TEXT, reported_on DATE, confirmed_on DATE);
INSERT INTO sighting VALUES (1, 'Whale', 'fog', '2019-01-02', NULL), (2, 'Seal', NULL, '2020-03-04', '2020-03-05'),
  (3, 'Squid', NULL, '2021-05-06', NULL);
INSERT INTO harbour VALUES (1, 'Cadiz', 9, 1890), (2, 'Faro', 7, 1920), (3, 'Vigo', 12, 1950), (4, 'Bilbao', 4, 1970);
INSERT INTO crew VALUES (1, 'Ann', 31, 1990), (2, 'Bo', 45, 1976), (3, 'Cy', 27, 1994), (4, 'Di', 52, 1969);
INSERT INTO boat VALUES (1, 'Gull', 9, 'Active', 'Y', 'lug', 1), (2, 'Tern', 7, 'Sunk', 'N', 'lug', 1),
  (3, 'Auk', 12, 'Active', 'Y', 'gaff', 2), (4, 'Erne', 5, 'Active', 'N', 'gaff', 1), (5, 'Smew', 6, 'Sunk', 'N', 'gaff', 1);
INSERT INTO sails_on VALUES (1, 1), (2, 1), (3, 2);
"""


@pytest.fixture
def boats(tmp_path: Path) -> Iterator[Labels]:
    file = tmp_path / "boats.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(_SQL)
    engine = open_database(file, engine="sqlite")
    database = TrainingDatabase("boats", engine.schema(), engine, has_rows=True)
    yield Labels(database)
    database.close()


def _made(labels: Labels, kind: str, seeds: int = 6) -> list[Item]:
    return [item for seed in range(seeds) for item in templated(labels, {kind: 1.0}, Random(seed), Tally())]


def _sqls(items: list[Item]) -> set[str]:
    return {sql_text(item.target.tree) for item in items}


def test_without_with_most_and_both_run_over_a_foreign_key(boats: Labels) -> None:
    items = _made(boats, "sets")
    sqls = _sqls(items)
    assert "SELECT name FROM harbour WHERE harbour_id NOT IN (SELECT harbour_id FROM boat)" in sqls
    assert "SELECT COUNT(*) FROM harbour WHERE harbour_id IN (SELECT harbour_id FROM boat)" in sqls
    assert any(" INTERSECT " in sql for sql in sqls) and any(" EXCEPT " in sql for sql in sqls)
    most = [item for item in items if "ORDER BY COUNT(*) DESC LIMIT 1" in sql_text(item.target.tree)]
    assert most and all("boats" in item.text or "crew" in item.text for item in most)
    assert all(item.target.rows for item in items)


def test_empty_columns_are_asked_for_in_words(boats: Labels) -> None:
    found = {item.text: sql_text(item.target.tree) for item in _made(boats, "blanks", 40)}
    assert found["How many sightings have no weather?"] == "SELECT COUNT(*) FROM sighting WHERE weather IS NULL"
    assert found["How many sightings have been confirmed?"] == (
        "SELECT COUNT(*) FROM sighting WHERE confirmed_on IS NOT NULL"
    )
    assert found["Count the sightings that were never confirmed."] == (
        "SELECT COUNT(*) FROM sighting WHERE confirmed_on IS NULL"
    )
    assert found["What are the titles of the sightings without a weather?"] == (
        "SELECT title FROM sighting WHERE weather IS NULL"
    )
    assert not [text for text in found if "sighting id" in text or "confirmed on" in text]


def test_what_was_done_first_and_last(boats: Labels) -> None:
    found = {item.text: sql_text(item.target.tree) for item in _made(boats, "superlatives", 40)}
    assert found["Which sighting was reported last? Just the title."] == (
        "SELECT title FROM sighting ORDER BY reported_on DESC LIMIT 1"
    )


def test_a_share_of_zero_draws_nothing(boats: Labels) -> None:
    """So data that were built before a kind was added can be built again."""
    rngs = Random(3), Random(3)
    made = [
        templated(boats, shares, rng, Tally())
        for shares, rng in zip(({"sets": 0.5, "blanks": 0.0}, {"sets": 0.5}), rngs, strict=True)
    ]
    assert [item.text for item in made[0]] == [item.text for item in made[1]]
    assert rngs[0].random() == rngs[1].random()


def test_a_table_that_only_links_two_is_called_by_the_other_one(boats: Labels) -> None:
    """Nobody asks for crews without sails on."""
    texts = [item.text for kind in KINDS for item in _made(boats, kind)]
    assert not [text for text in texts if "sails on" in text]
    assert any("boat" in item.text for item in _made(boats, "sets") if "sails_on" in sql_text(item.target.tree))


@pytest.mark.parametrize(
    ("word", "order"),
    [
        ("youngest", "age ASC"),
        ("youngest", "birth_year DESC"),
        ("oldest", "birth_year ASC"),
        ("oldest", "opening_year ASC"),
        ("newest", "opening_year DESC"),
        ("deepest", "depth DESC"),
        ("shortest", "length ASC"),
    ],
)
def test_a_superlative_sorts_as_its_column_means(boats: Labels, word: str, order: str) -> None:
    column = order.split()[0]
    sorted_by = {
        sql.split("ORDER BY ")[1].split(" LIMIT")[0].removesuffix(" ASC")
        for item in _made(boats, "superlatives", 12)
        if word in item.text and f"ORDER BY {column}" in (sql := sql_text(item.target.tree))
    }
    assert sorted_by == {order.removesuffix(" ASC")}


def test_tied_ends_are_not_asked_for(boats: Labels) -> None:
    author = Author(boats, Random(0))
    boat = next(table for table in author.tables if table.name == "boat")
    assert author.distinct_top(boat, "length", "DESC", 2) and not author.distinct_top(boat, "status", "DESC")
    assert meaning("average price") is meaning("price") and meaning("colour") is None


def test_flags_and_states_are_said_as_people_say_them(boats: Labels) -> None:
    items = _made(boats, "conditions")
    said = {item.text: sql_text(item.target.tree) for item in items}
    insured = [(text, sql) for text, sql in said.items() if " insured" in text]
    assert insured and not any("yn" in text for text in said)
    for text, sql in insured:
        assert ("'N'" in sql) == ("not insured" in text), text
    assert any("active boats" in text and "status = 'Active'" in sql for text, sql in said.items())


def test_the_second_table_is_joined_only_where_it_is_asked_for(boats: Labels) -> None:
    for item in _made(boats, "tables"):
        sql = sql_text(item.target.tree)
        assert ("JOIN harbour" in sql) == (
            "harbour" in item.text and " id" not in item.text and "FROM harbour" not in sql
        )
    assert "SELECT COUNT(*) FROM crew" in _sqls(_made(boats, "tables"))


@pytest.mark.parametrize(
    "asked",
    [
        Asked("Which boats are longer than 90?", "SELECT name FROM boat WHERE length > 90", "boat"),
        Asked("Which boats are longer than 1?", "SELECT name FROM boat WHERE length > 1", "boat"),
        Asked("How many boats are longer than 90?", "SELECT COUNT(*) FROM boat WHERE length > 90"),
        Asked("Which boats fly?", "SELECT wings FROM boat"),
    ],
)
def test_a_result_that_says_nothing_is_refused(boats: Labels, asked: Asked) -> None:
    with pytest.raises(GoldError):
        telling(asked, boats.database)


def test_templates_of_held_out_databases_are_held_out_by_kind(spider: Path, tmp_path: Path) -> None:
    options = Options(variants=0, spider_syn=0, databases=("farm", "aircraft"))
    build(spider.parent, tmp_path, options, lambda text: len(text.split()), lambda line: None)

    def kinds(name: str) -> set[str]:
        return {pair.id.split("/")[0] for group in read_groups(tmp_path / name) for pair in group.pairs}

    assert kinds("train.jsonl") >= {"spider", "tables", "sets"} and kinds("held_out.jsonl") <= {"spider", "spider_syn"}
    for kind in ("tables", "sets", "superlatives"):
        assert kinds(f"held_out/{kind}.jsonl") == {kind}


_SQL_AMOUNTS_AND_TIMES = """
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
        connection.executescript(_SQL_AMOUNTS_AND_TIMES)
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
