"""Columns that are added to a query's own, and the headings of all. The query's rows never change, but for the order of time.

The one sentence of an answer: it answers, and claims no order that there is not.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.presentation.checks import pooled
from agent.presentation.done import difference, which_reading
from agent.presentation.present import present
from agent.presentation.sentence import result_sentence
from agent.presentation.shown import Shown, cell_text, in_column, in_short, kind_of_cells
from tests.agent.graph.presentation.conftest import BY_GENRE, Explain
from tools.databases.database import Database
from tools.databases.open_database import open_database, restricted
from tools.result import Limits, QueryError, Result


def heads(shown: Shown) -> list[str]:
    return [column.heading for column in shown.columns]


def test_a_forgotten_group_column_is_added_with_its_name(explain: Explain) -> None:
    shown = explain("SELECT count(*) FROM albums GROUP BY genre_id")
    assert heads(shown) == ["genre", "albums", "genre id"]
    assert sorted(shown.rows) == [("Jazz", 3, 1), ("Rock", 1, 2)]
    assert shown.given == (1,)


def test_the_column_that_rows_are_sorted_by_is_added(explain: Explain) -> None:
    shown = explain("SELECT title FROM albums ORDER BY price DESC LIMIT 2")
    assert heads(shown) == ["title", "price"]
    assert [row[0] for row in shown.rows] == ["Three", "Four"]
    assert shown.given == (0,)


def test_an_id_gets_the_name_beside_it(explain: Explain) -> None:
    """ "Who sold most?" once answered "manager id: 1"."""
    shown = explain("SELECT manager_id FROM people GROUP BY manager_id ORDER BY count(manager_id) DESC LIMIT 1")
    assert (heads(shown)[0], heads(shown)[-1]) == ("manager", "manager id")
    assert (shown.rows[0][0], shown.rows[0][-1]) == ("Ada Moss", 1)


def test_any_value_of_an_id_is_that_id(explain: Explain) -> None:
    """ "Who sold most?" was also answered "Customer id: 230", for `any_value` hid that it is one."""
    shown = explain("SELECT any_value(person_id) FROM albums GROUP BY person_id ORDER BY count(*) DESC LIMIT 1")
    assert heads(shown) == ["person", "albums", "person id"]
    assert shown.rows[0] == ("Bo Lind", 2, 2)


def test_what_a_row_is_comes_before_what_was_counted(explain: Explain) -> None:
    joined = "FROM albums JOIN genres ON albums.genre_id = genres.genre_id GROUP BY genres.name"
    shown = explain(f"SELECT count(*), genres.name {joined} ORDER BY count(*) DESC")
    assert (heads(shown), shown.rows[0], shown.given) == (["genre", "albums"], ("Jazz", 3), (1, 0))
    assert shown.sorting is not None and shown.sorting.place == 1
    assert heads(explain("SELECT max(price), min(price) FROM albums")) == ["highest price", "lowest price"]


def test_a_name_that_is_there_is_not_added_again(explain: Explain) -> None:
    joined = "FROM albums JOIN genres ON albums.genre_id = genres.genre_id"
    assert heads(explain(f"SELECT genres.genre_id, genres.name {joined}")) == ["genre", "genre id"]
    grouped = f"SELECT genres.name, count(*) {joined} GROUP BY genres.genre_id, genres.name"
    assert heads(explain(grouped)) == ["genre", "albums"]
    any_name = f"SELECT any_value(genres.name), count(*) {joined} GROUP BY genres.genre_id"
    assert heads(explain(any_name)) == ["genre", "albums"]


def test_what_is_looked_up_of_another_tables_name_says_whose_it_is(explain: Explain) -> None:
    """With the customers' addresses hidden, "Email: jane@shop.example" was a clerk's, for the question about a customer."""
    joined = "FROM albums JOIN people ON albums.person_id = people.person_id"
    assert heads(explain(f"SELECT people.last_name {joined} WHERE albums.title = 'One'")) == ["person last name"]
    assert heads(explain(f"SELECT albums.title {joined} WHERE people.last_name IN ('Lind', 'Ruiz')")) == ["album title"]
    assert heads(explain(f"SELECT albums.title {joined} WHERE albums.title = 'One'")) == ["title"]
    assert heads(explain(f"SELECT albums.title {joined} WHERE albums.price > 10")) == ["title"]
    assert heads(explain("SELECT last_name FROM people WHERE first_name = 'Ada'")) == ["last name"]


def test_a_bare_name_says_whose_it_is_among_several_tables(explain: Explain) -> None:
    """ "name" over genres, next to a count of albums, could be the album's."""
    assert heads(explain("SELECT name FROM genres")) == ["name"]
    joined = "FROM albums JOIN genres ON albums.genre_id = genres.genre_id"
    assert heads(explain(f"SELECT genres.name, albums.title {joined}")) == ["genre", "title"]
    twice = "SELECT a.name, b.name FROM genres a JOIN genres b ON a.genre_id = b.genre_id"
    assert "genre genre" not in heads(explain(twice)) and len(heads(explain(twice))) == 2


def test_the_name_of_another_row_of_the_same_table_is_added(explain: Explain) -> None:
    shown = explain("SELECT last_name, manager_id FROM people ORDER BY person_id")
    assert heads(shown) == ["last name", "manager", "manager id"]
    assert shown.rows[1] == ("Lind", "Ada Moss", 1)
    assert shown.rows[0] == ("Moss", None, None)


@pytest.mark.parametrize(
    ("item", "heading"),
    [
        ("100.0 * SUM(CASE WHEN title = 'Three' THEN 1 ELSE 0 END) / NULLIF(COUNT(*), 0)", "percentage of title Three"),
        ("SUM(CASE WHEN title = 'Three' THEN 1 ELSE 0 END)", "title Three"),
        ("STRFTIME(sold_on, '%Y-%m')", "month"),
        ("count(*)", "albums"),
        ("count(DISTINCT genre_id)", "genres"),
        ("count(DISTINCT title)", "different titles"),
        ("count(sold_on)", "number of sold ons"),
        ("avg(price)", "average price"),
        ("round(sum(price), 1)", "total price"),
        ("max(sold_on)", "latest sold on"),
        ("min(price)", "lowest price"),
        ("sum(TRY_CAST(title AS DOUBLE))", "total title"),
        ("max(price) AS dearest_one", "dearest one"),
        ("sum(price * released)", "total price × released"),
    ],
)
def test_headings_are_words(explain: Explain, item: str, heading: str) -> None:
    assert heads(explain(f"SELECT {item} FROM albums")) == [heading]


def test_equal_headings_are_told_apart_by_their_tables(explain: Explain) -> None:
    joined = (
        "albums JOIN people ON albums.person_id = people.person_id JOIN genres ON albums.genre_id = genres.genre_id"
    )
    assert heads(explain(f"SELECT genres.genre_id, albums.genre_id FROM {joined}"))[-1].startswith("album")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT released FROM albums ORDER BY 1",
        "SELECT title, price FROM albums ORDER BY 2 DESC",
        "SELECT title FROM albums UNION SELECT name FROM genres",
        "SELECT * FROM albums",
        "WITH a AS (SELECT title FROM albums) SELECT title FROM a",
        "SELECT count(*) FROM albums GROUP BY released HAVING count(*) > 1",
        "SELECT title FROM albums ORDER BY released LIMIT 1",
        "SELECT title FROM albums WHERE price < 0 ORDER BY price",
    ],
)
def test_the_querys_own_rows_are_all_there(explain: Explain, shop: Database, sql: str) -> None:
    """Whatever is added, its own columns hold its own rows; a wider query with others is dropped."""
    result = shop.execute(sql)
    assert isinstance(result, Result)
    shown = explain(sql)
    assert sorted(map(repr, (tuple(row[place] for place in shown.given) for row in shown.rows))) == sorted(
        map(repr, result.rows)
    )


def test_a_wider_query_with_other_rows_is_dropped(shop: Database) -> None:
    sql = "SELECT title FROM albums ORDER BY price DESC LIMIT 1"
    result = shop.execute(sql)
    assert isinstance(result, Result)
    other = Result(("title", "price"), ("VARCHAR", "DECIMAL"), (("Another", 1),), False, 1.0)
    assert present(result, sql, shop.schema(), lambda _: other).rows == result.rows
    failed = QueryError("timeout", "stopped after 2 s")
    assert present(result, sql, shop.schema(), lambda _: failed).rows == result.rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT any_value(title), count(*) FROM albums GROUP BY genre_id ORDER BY count(*) DESC",
        "SELECT title FROM albums ORDER BY price DESC LIMIT 2",
        "SELECT any_value(person_id) FROM albums GROUP BY person_id ORDER BY count(*) DESC LIMIT 1",
        "SELECT last_name, manager_id FROM people ORDER BY person_id",
        "SELECT genre_id, avg(price) AS mean_price FROM albums GROUP BY 1 HAVING mean_price > 1 ORDER BY mean_price",
        "SELECT genre_id, count(*) FROM albums GROUP BY genre_id ORDER BY 2, 1 DESC",
        "SELECT round(price) AS released, title FROM albums ORDER BY released DESC, title",
        "SELECT round(price), title FROM albums WHERE price > 10 GROUP BY price, title ORDER BY price",
        "SELECT -price AS the_price, the_price * 2 AS doubled FROM albums ORDER BY the_price",
        "WITH a AS (SELECT title, genre_id FROM albums) SELECT title, genre_id FROM a ORDER BY title",
        "SELECT g.name, a.title FROM genres g JOIN albums AS a ON a.genre_id = g.genre_id ORDER BY a.title",
        "SELECT count(*), genre_id FROM albums GROUP BY genre_id",
        "SELECT released AS year, count(*) FROM albums GROUP BY 1",
    ],
)
def test_one_statement_gives_what_is_shown(explain: Explain, shop: Database, sql: str) -> None:
    """The SQL under an answer once gave other rows: without the reviews that stood on the screen, under `any_value(title)`."""
    shown = explain(sql)
    again = shop.execute(shown.statement)
    assert isinstance(again, Result), (shown.statement, again)
    assert (list(again.columns), again.rows) == (heads(shown), shown.rows)
    assert "(" not in "".join(again.columns)


def test_groups_that_nobody_asked_to_sort_are_sorted_as_they_read_best(explain: Explain) -> None:
    """The sentence said who leads, and the rows below it stood as the database gave them."""
    by_name = explain("SELECT last_name, count(*) FROM people, range(person_id * 2) GROUP BY last_name")
    assert [row[0] for row in by_name.rows] == ["Ruiz", "Lind", "Moss"] and by_name.sorting is None
    years = explain("SELECT released, sum(price) FROM albums GROUP BY released")
    assert [row[0] for row in years.rows] == [1999, 2010, 2011]
    months = explain("SELECT strftime(sold_on, '%Y-%m') AS month, count(*) FROM albums GROUP BY 1")
    assert [row[0] for row in months.rows] == ["2024-01", "2024-05", None]
    asked = explain(
        "SELECT last_name, count(*) FROM people, range(person_id * 2) GROUP BY last_name ORDER BY last_name"
    )
    assert [row[0] for row in asked.rows] == ["Lind", "Moss", "Ruiz"]


def test_names_that_may_not_be_seen_are_not_shown(shop_file: Path) -> None:
    """The further queries see what the first one sees."""
    sql = "SELECT genre_id FROM albums"
    narrow = restricted(open_database(shop_file), (), ("genres.name",))
    result = narrow.execute(sql)
    assert isinstance(result, Result)
    asked: list[str] = []

    def run(statement: str) -> Result | QueryError:
        asked.append(statement)
        return narrow.execute(statement, Limits())

    assert heads(present(result, sql, narrow.schema(), run)) == ["genre id"]
    assert asked == []
    narrow.close()


def test_a_declared_label_column_is_used(shop: Database) -> None:
    sql = "SELECT person_id FROM people WHERE person_id = 2"
    result = shop.execute(sql)
    assert isinstance(result, Result)
    shown = present(result, sql, shop.schema(), shop.execute, {"people": ("last_name",)})
    assert shown.rows == (("Lind", 2),)


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT count(*) FROM albums", "4 albums."),
        ("SELECT count(*) FROM albums WHERE price > 1000", "1 album."),
        ("SELECT avg(price) FROM albums", "Average price: 318.94."),
        ("SELECT sum(price) FROM albums WHERE price < 0", "There is no total price."),
        (f"SELECT genres.name, count(*) {BY_GENRE}", "2 genres; Jazz leads with 3 albums."),
        (f"SELECT genres.name {BY_GENRE} ORDER BY count(*) DESC LIMIT 1", "Jazz has the most albums: 3."),
        (f"SELECT genres.name {BY_GENRE} ORDER BY count(*) LIMIT 1", "Rock has the fewest albums: 1."),
        (f"SELECT genres.name, avg(price) {BY_GENRE} ORDER BY 2", "2 genres; Jazz is lowest with an average price of 13.92."),
        ("SELECT title FROM albums ORDER BY price DESC LIMIT 1", "Three has the highest price: 1,234."),
        ("SELECT title FROM albums ORDER BY released LIMIT 1", "Title: Four; released: 1999."),
        ("SELECT title, sold_on FROM albums WHERE sold_on IS NOT NULL ORDER BY sold_on LIMIT 1",
         "One: sold on 2024-01-02, the earliest."),
        ("SELECT released, count(*) FROM albums GROUP BY released", "3 rows: released, albums."),
        ("SELECT title, released FROM albums", "4 albums: title, released."),
        ("SELECT title FROM albums ORDER BY title", "4 albums: Four, One, Three, Two."),
        ("SELECT title, sum(released) AS age_years FROM albums WHERE genre_id = 1 GROUP BY title",
         "3 albums; Two leads with an age of 2,011 years."),
        (f"SELECT genres.name, count(*) * 10 AS copies {BY_GENRE}", "2 genres; Jazz leads with 30 copies."),
        ("SELECT name FROM genres WHERE genre_id = 3", "Name: [bold]."),
        ('SELECT price > 10 AS "paid?" FROM albums', "4 rows: paid."),
    ],
)  # fmt: skip
def test_sentences(explain: Explain, sql: str, sentence: str) -> None:
    assert result_sentence(explain(sql)) == sentence


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT title FROM albums WHERE price < 15 ORDER BY person_id LIMIT 1",
         "Title: One; person: Bo Lind."),
        ("SELECT manager_id FROM people WHERE person_id > 1 GROUP BY manager_id ORDER BY count(*) LIMIT 1",
         "Ada Moss has the fewest people: 2."),
        ("SELECT title FROM albums GROUP BY title ORDER BY count(*) DESC LIMIT 1",
         "Two has the most albums: 1. 4 share this place: Two, Three, One and Four."),
        ("SELECT genre_id FROM albums GROUP BY genre_id, price ORDER BY count(*) DESC LIMIT 1",
         "Rock has the most albums: 1. 4 share this place."),
        ("SELECT title FROM albums ORDER BY price - price LIMIT 1 OFFSET 1", "Two has the lowest price − price: 0."),
        ("SELECT a.title FROM albums a, range(30) ORDER BY a.released LIMIT 1", "Title: Four; released: 1999."),
        ("SELECT a.title, r.range FROM albums a, range(30) AS r ORDER BY a.price LIMIT 1",
         "One has the lowest price: 9.50. More than 20 share this place."),
    ],
)  # fmt: skip
def test_who_else_has_the_first_place_is_said(explain: Explain, sql: str, sentence: str) -> None:
    assert result_sentence(explain(sql)) == sentence


def test_nobody_leads_among_equals(explain: Explain) -> None:
    sentence = result_sentence(explain("SELECT title, count(*) FROM albums GROUP BY title"))
    assert sentence == "4 albums and their albums."


def test_cells() -> None:
    from datetime import date, datetime
    from decimal import Decimal

    assert in_column([26.253333333333334, 3, None], "amount") == ["26.25", "3.00", "–"]
    assert in_column([Decimal("1234567.5"), Decimal(2)], "amount") == ["1,234,567.50", "2.00"]
    assert in_column([0.00456], "amount") == ["0.0046"]
    assert in_column([float("nan"), float("inf")], "amount") == ["nan", "inf"]
    assert cell_text(datetime(2024, 1, 2)) == "2024-01-02"
    assert cell_text(datetime(2024, 1, 2, 3, 4)) == "2024-01-02 03:04:00"
    assert cell_text(date(2024, 1, 2)) == "2024-01-02"
    assert (cell_text(True), cell_text(b"abc")) == ("yes", "(3 bytes)")
    assert kind_of_cells("released", [2010, 1999, None], False, False) == "digits"
    assert kind_of_cells("albums", [2010, 1999], False, True) == "amount"
    assert kind_of_cells("zip_code", [12345], False, False) == "digits"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT title FROM albums ORDER BY price DESC LIMIT 2", "Listed title of albums; the 2 with the highest price."),
        (f"SELECT genres.name, count(*) {BY_GENRE} ORDER BY count(*) DESC",
         "Counted albums for each genre; sorted by albums, highest first."),
        ("SELECT avg(price) FROM albums WHERE released >= 2010 AND title <> 'One'",
         "Averaged price; only where released is at least 2010 and title is not “One”."),
        ("SELECT any_value(title) FROM albums GROUP BY genre_id ORDER BY sum(price) LIMIT 1",
         "Added up price for each genre id; the one with the lowest total price."),
        ("SELECT genre_id, max(price) FROM albums WHERE sold_on IS NULL GROUP BY 1",
         "Looked up highest price for each genre id; only where sold on is empty."),
        ("SELECT * FROM genres", "Listed all columns of genres."),
        ("SELECT DISTINCT released FROM albums", "Listed the different released of albums."),
    ],
)  # fmt: skip
def test_what_was_done_is_said_in_one_line(explain: Explain, sql: str, told: str) -> None:
    """By it a person who reads no SQL finds a wrong answer; it once stood in a tab of its own, in the words of SQL."""
    assert explain(sql).done == told


def test_readings_differ_in_words_and_results_are_told_in_short(shop: Database) -> None:
    own, other = "SELECT title FROM albums WHERE released = 2010", "SELECT title FROM albums WHERE released = 2011"
    assert difference(other, own, shop.schema()) == "only where released is 2011"
    result = shop.execute("SELECT title, price FROM albums ORDER BY album_id")
    assert isinstance(result, Result)
    assert in_short(result) == "4 rows: One 9.50, Two 12.25 …"


SHOPS = """
    CREATE TABLE employees (employee_id INTEGER PRIMARY KEY, first_name TEXT, last_name TEXT, title TEXT);
    INSERT INTO employees VALUES (1, 'Ann', 'Ng', 'Agent'), (2, 'Bo', 'Li', 'Agent');
    CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, contact_name TEXT, company_name TEXT, contact_title TEXT);
    INSERT INTO customers VALUES (1, 'Al', 'Acme', 'Owner'), (2, 'Bea', 'Bolt', 'Owner');
    CREATE TABLE taxis (taxi_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers, employee_id INTEGER REFERENCES
        employees, total REAL, made_on TEXT);
    INSERT INTO taxis VALUES (1, 1, 2, 5, '2024-02-01'), (2, 1, 2, 7, '2024-01-01'), (3, 2, 1, 1, '2023-05-05');
    CREATE TABLE seattle_weather (day TEXT);
    INSERT INTO seattle_weather VALUES ('2024-01-01'), ('2024-01-02');
"""


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("shops") / "shops.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SHOPS)
    database = open_database(path, engine="sqlite")
    yield database
    database.close()


def shown_of(database: Database, sql: str, rows: Sequence[tuple[object, ...]] | None = None) -> Shown:
    """rows: the result's, in an order that an engine may give them."""
    result = database.execute(sql)
    assert isinstance(result, Result)
    given = result if rows is None else replace(result, rows=tuple(rows))
    return present(given, sql, database.schema(), database.execute if rows is None else lambda _: given)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT employee_id, count(*) FROM taxis GROUP BY employee_id", "2 employees; Bo Li leads with 2 taxis."),
        (
            "SELECT customer_id, sum(total) FROM taxis GROUP BY customer_id",
            "2 customers; Acme leads with a total of 12.",
        ),
        ("SELECT sum(total) FROM taxis", "Total: 13."),
        ("SELECT count(*) FROM taxis", "3 taxis."),
        ("SELECT count(*) FROM taxis WHERE total = 1", "1 taxi."),
        ("SELECT count(*) FROM seattle_weather", "2 rows of seattle weather."),
        ("SELECT count(*) FROM seattle_weather WHERE day > '2024-01-01'", "1 row of seattle weather."),
    ],
)
def test_people_companies_and_plurals(shops: Database, sql: str, told: str) -> None:
    """Employees were called by their jobs, and there were a "total total", "taxises" and "365 seattle weathers"."""
    assert result_sentence(shown_of(shops, sql)) == told


def test_months_come_in_their_order(shops: Database) -> None:
    sql = "SELECT strftime('%Y-%m', made_on), count(*) FROM taxis GROUP BY 1"
    rows = [("2024-02", 1), ("2023-05", 1), (None, 2), ("2024-01", 1)]
    months = ["2023-05", "2024-01", "2024-02", None]
    assert [row[0] for row in shown_of(shops, sql, rows).rows] == months
    ordered = shown_of(shops, f"{sql} ORDER BY 2 DESC", rows)
    assert [row[0] for row in ordered.rows] == [row[0] for row in rows]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT count(*) FROM employees WHERE last_name IN ('Ng', 'Li')", "This is of Ng and Li together."),
        ("SELECT last_name, count(*) FROM employees WHERE last_name IN ('Ng', 'Li') GROUP BY last_name", ""),
        ("SELECT count(*) FROM employees WHERE last_name IN ('Ng', 'NG')", ""),
        ("SELECT first_name FROM employees WHERE last_name IN ('Ng', 'Li')", ""),
    ],
)
def test_values_that_were_pooled_are_said(shops: Database, sql: str, told: str) -> None:
    """ "How many are in A and B" was one number without a word."""
    assert pooled(sql, shown_of(shops, sql), "sqlite") == told


def test_the_question_names_the_difference_that_divides_readings_most_evenly(shop: Database) -> None:
    """The condition divides seven votes into 3, 1, 1 and two others, what is computed into 6 and 1."""
    count = "SELECT COUNT(*) FROM albums"
    readings = [
        (count, "9", 2),
        ("SELECT MAX(released) FROM albums", "2014", 1),
        (f"{count} WHERE released = 2011", "3", 1),
        (f"{count} WHERE released = 2012", "2", 1),
        (f"{count} WHERE released = 2013", "1", 1),
        (f"{count} WHERE released = 2014", "0", 1),
    ]
    asked = which_reading(readings, shop.schema())
    assert asked and asked["message"] == (
        "Which do you mean: all rows, or only where released is 2011, or only where released is 2012?"
    )
    assert [(each["sql"], each["result"], each["votes"]) for each in asked["options"]] == [
        (readings[0][0], "9", 3), (readings[2][0], "3", 1), (readings[3][0], "2", 1)
    ]  # fmt: skip
    even = which_reading([readings[0], (readings[1][0], "2014", 2), (readings[2][0], "3", 1)], shop.schema())
    assert even and [each["label"] for each in even["options"]] == ["counted albums", "looked up highest released"]


def test_readings_that_words_do_not_tell_apart_are_not_asked_about(shop: Database) -> None:
    nested = "SELECT COUNT(*) FROM (SELECT title FROM albums LIMIT {})"
    assert which_reading([(nested.format(n), str(n), 1) for n in (2, 3)], shop.schema()) is None
    assert which_reading([("SELECT COUNT(*) FROM albums", "9", 3)], shop.schema()) is None
