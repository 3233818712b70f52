"""Which answers their results, units and names make doubtful, without a model."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent.presentation.checks import result_doubts
from agent.presentation.present import present
from agent.presentation.shown import Shown
from tests.agent.graph.presentation.conftest import BY_GENRE, Explain
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Result
from tools.schema import Column, Schema, Table


@pytest.mark.parametrize(
    ("question", "sql", "doubt"),
    [
        ("Which title is most popular?", "SELECT title, count(*) FROM albums GROUP BY title ORDER BY 2 DESC LIMIT 1",
         "nobody leads"),
        ("Which genre has most albums?", f"SELECT genres.name, count(*) {BY_GENRE} ORDER BY 2 DESC", ""),
        ("Plot albums by genre", "SELECT g.name FROM albums JOIN genres g ON albums.genre_id = g.genre_id",
         "2 different ones in 4"),
        ("Names of genres?", "SELECT name FROM genres", ""),
        ("What share of the albums is from 2010?", "SELECT count(*) FROM albums WHERE released = 2010", "asks for a share"),
        ("What share of the albums is from 2010?", "SELECT avg((released = 2010)::INT) FROM albums", ""),
        ("What is the average price?", "SELECT sum(price) FROM albums", "asks for an average"),
        ("What is the average price?", "SELECT avg(price) FROM albums", ""),
        ("How many albums are there for each genre?", "SELECT count(*) FROM albums", "about each genre"),
        ("The number of albums per genre", "SELECT count(*) FROM albums", "about each genre"),
        ("The average price per album", "SELECT avg(price) FROM albums", ""),
        ("How many albums are there?", "SELECT count(*) FROM albums", ""),
        ("Turnover per genre", f"SELECT genres.name, count(*) {BY_GENRE}", "“Turnover” is no column here; this counts albums."),
        ("What is our total revenue?", "SELECT sum(price) FROM albums", "this shows total price"),
        ("What is our total revenue?", "SELECT sum(price * released) FROM albums", ""),
        ("What is the profit?", "SELECT sum(price * released) FROM albums", "“profit” is no column here"),
        ("What is the profit?", "SELECT sum(price - released) FROM albums", ""),
        ("Which genre has the best sales?", f"SELECT genres.name {BY_GENRE} LIMIT 1", "this has no amount at all"),
    ],
)  # fmt: skip
def test_a_result_that_has_not_the_form_asked_for_is_doubted(
    explain: Explain, shop: Database, question: str, sql: str, doubt: str
) -> None:
    """ "What share of orders …" was once answered "284 customers." in bold, and the genre with most genres had one."""
    found = result_doubts(question, sql, explain(sql), shop.schema())
    assert [doubt in each for each in found] == ([True] if doubt else []), found


CALLS = Schema(
    (
        Table("calls", (
            Column("id", "INTEGER"), Column("length_ms", "INTEGER"), Column("Seconds", "INTEGER"), Column("day", "INTEGER"),
            Column("wait", "INTEGER", comment="in seconds, 0 where nobody waited"), Column("weight_kg", "REAL"),
            Column("price_cents", "INTEGER"), Column("price", "REAL"), Column("min_hours", "REAL"), Column("km_per_h", "REAL"),
        )),
    ),
    "sqlite",
)  # fmt: skip


@pytest.mark.parametrize(
    ("question", "condition", "doubt"),
    [
        ("How many calls are longer than 10 minutes?", "length_ms > 10", "“10 minutes”; length_ms holds milliseconds"),
        ("How many calls are longer than 10 minutes?", "length_ms > 600000", ""),
        ("How many calls are longer than 10 minutes?", "length_ms / 60000.0 > 10", ""),
        ("Calls of at least 600 seconds", "Seconds >= 600", ""),
        ("Calls of 2-5 hours", "c.Seconds BETWEEN 2 AND 5", "“5 hours”; Seconds holds seconds"),
        ("Who waited more than an hour?", "wait > 1", "“an hour”; wait holds seconds"),
        ("Who waited in 10 calls?", "wait > 10", ""),
        ("Calls over 500 g", "500 < weight_kg", "“500 g”; weight_kg holds kilograms"),
        ("Calls that cost over 1,000 euros", "price_cents > 1000", "“1,000 euros”; price_cents holds cents"),
        ("Calls that cost over 20 euros", "price > 20", ""),
        ("Calls in the first 3 months", "day <= 3", ""),
        ("Calls of at least 30 minutes", "min_hours >= 30", "min_hours holds hours"),
        ("Drives of over 80 km", "km_per_h > 80", ""),
        ("Calls in the 90s", "length_ms > 90", ""),
        ("Calls of over 90 s", "length_ms > 90", "“90 s”; length_ms holds milliseconds"),
    ],
)
def test_a_number_that_is_compared_in_another_unit_is_doubted(question: str, condition: str, doubt: str) -> None:
    """ "Tracks longer than 10 minutes" once were more than 1,000, in bold: the column held milliseconds."""
    shown = Shown((), ((1,),), ())
    found = result_doubts(question, f"SELECT count(*) FROM calls AS c WHERE {condition}", shown, CALLS)
    assert [doubt in each for each in found] == ([True] if doubt else []), found


def test_an_amount_that_was_taught_or_is_a_value_is_not_doubted(explain: Explain, shop: Database) -> None:
    """Guards against heading what a metric, the evidence, or a value such as "sales assistant" explains."""
    sql = "SELECT sum(price) FROM albums"
    assert result_doubts("What is our revenue?", sql, explain(sql), shop.schema(), "revenue = price") == []
    counted = "SELECT count(*) FROM people"
    assert (
        result_doubts("How many sales assistants?", counted, explain(counted), shop.schema(), "sales assistants") == []
    )


@pytest.mark.parametrize(
    ("question", "sql", "doubt"),
    [
        ("Which 店铺 has the highest 销售额?", 'SELECT MAX("店铺") FROM "销售"', "names 销售额, which"),
        ("店铺的销售额", 'SELECT "店铺" FROM "销售"', "names 销售额, which"),
        ("Which 店铺 has the highest 销售额?", 'SELECT "店铺" FROM "销售" ORDER BY "销售额" DESC LIMIT 1', ""),
        ("What is the 销售额 in all?", 'SELECT SUM("销售额") FROM "销售"', ""),
        ("Show all with 店铺 and 销售额", 'SELECT * FROM "销售"', ""),
    ],
)  # fmt: skip
def test_a_name_in_other_letters_must_be_used(tmp_path: Path, question: str, sql: str, doubt: str) -> None:
    """ "Which 店铺 has the highest 销售额?" was once answered with MAX(店铺), without a word."""
    with closing(sqlite3.connect(tmp_path / "sales.sqlite")) as connection:
        connection.executescript("""CREATE TABLE "销售" ("店铺" TEXT, "销售额" REAL);
            INSERT INTO "销售" VALUES ('北京', 120.5), ('上海', 300);""")
    with closing(open_database(tmp_path / "sales.sqlite", engine="sqlite")) as database:
        result = database.execute(sql)
        assert isinstance(result, Result)
        shown = present(result, sql, database.schema(), database.execute, {})
        found = result_doubts(question, sql, shown, database.schema())
    assert [doubt in each for each in found] == [True] * bool(doubt), found
