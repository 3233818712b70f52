"""What is newest has the latest date, and no highest identifier; where the date is not certain, nothing changes."""

import pytest

from tools.repair.columns.take_dates import take_dates
from tools.schema import Column, ForeignKey, Schema, Table

ALBUM = Table(
    "albums", (Column("album_id", "INTEGER", primary_key=True), Column("title", "TEXT"), Column("released", "DATE"))
)
ORDER = Table(
    "orders",
    (Column("order_id", "INTEGER", primary_key=True), Column("ordered_on", "DATE"), Column("shipped_on", "DATE")),
)
BAND = Table(
    "bands", (Column("id", "INTEGER", primary_key=True), Column("Year Formed", "INTEGER"), Column("age", "INTEGER"))
)
SONG = Table(
    "songs",
    (Column("album_id", "INTEGER"), Column("at", "TIME")),
    (ForeignKey(("album_id",), "albums", ("album_id",)),),
)
TABLES = (ALBUM, ORDER, BAND, SONG)
SCHEMA = Schema(TABLES, "duckdb")


@pytest.mark.parametrize(
    ("sql", "question", "then"),
    [
        (
            "SELECT title FROM albums ORDER BY album_id LIMIT 1",
            "What is the title of the oldest album?",
            "SELECT title FROM albums ORDER BY released LIMIT 1",
        ),
        (
            "SELECT title FROM albums ORDER BY album_id LIMIT 3",
            "The three newest albums?",
            "SELECT title FROM albums ORDER BY released DESC LIMIT 3",
        ),
        ("SELECT MAX(album_id) FROM albums", "When was the last album out?", "SELECT MAX(released) FROM albums"),
        ("SELECT MAX(album_id) FROM albums", "When was the first album out?", "SELECT MIN(released) FROM albums"),
        (
            "SELECT age FROM bands ORDER BY id DESC LIMIT 1",
            "The most recent band?",
            'SELECT age FROM bands ORDER BY "Year Formed" DESC LIMIT 1',
        ),
    ],
)
def test_a_date_stands_in_the_place_of_an_identifier(sql: str, question: str, then: str) -> None:
    assert take_dates(sql, SCHEMA, question) == then
    assert take_dates(then, SCHEMA, question) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT title FROM albums ORDER BY album_id LIMIT 1", "Which album has the lowest number?"),
        ("SELECT title FROM albums ORDER BY album_id LIMIT 1", "The first and the last album?"),
        ("SELECT title FROM albums ORDER BY album_id", "The oldest albums first?"),  # all of them, in some order
        ("SELECT title FROM albums ORDER BY title LIMIT 1", "The oldest album?"),
        ("SELECT order_id FROM orders ORDER BY order_id DESC LIMIT 1", "The latest order?"),  # ordered or shipped?
        ("SELECT album_id FROM songs ORDER BY album_id LIMIT 1", "The earliest song?"),  # a time of day
        ("SELECT MAX(album_id), MIN(album_id) FROM albums", "The last one?"),
        ("SELECT MAX(album_id) FROM nowhere", "The last one?"),
        ("SELECT album_id, COUNT(*) FROM songs GROUP BY album_id ORDER BY album_id LIMIT 1", "The oldest?"),
        ("SELECT title FROM albums ORDER BY", "The oldest album?"),
    ],
)
def test_other_orders_stay(sql: str, question: str) -> None:
    assert take_dates(sql, SCHEMA, question) is None


def test_sqlite_keeps_its_own_order_of_nothing() -> None:
    found = take_dates(
        "SELECT title FROM albums ORDER BY album_id LIMIT 1", Schema(TABLES, "sqlite"), "The newest album?"
    )
    assert found == "SELECT title FROM albums ORDER BY released DESC LIMIT 1"
