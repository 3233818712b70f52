"""The only aggregate is of the column that the question names, if it names one."""

import pytest

from tools.repair.columns.measure_said import measure_said
from tools.schema import Column, Schema, Table

ALBUM = Table("albums", (Column("id", "INTEGER"), Column("title", "TEXT"), Column("list_price", "DECIMAL(8, 2)")))
RATINGS = (Column("rating", "INTEGER"), Column("Star Rating", "INTEGER"))
REVIEW = Table("reviews", (Column("album_id", "INTEGER"), *RATINGS, Column("note", "TEXT")))
LAP = Table("laps", (Column("fastestlap", "INTEGER"), Column("fastestlapspeed", "REAL")))
SCHEMA = Schema((ALBUM, REVIEW, LAP), "duckdb")
JOINED = "FROM albums JOIN reviews ON reviews.album_id = albums.id"


@pytest.mark.parametrize(
    ("sql", "question", "then"),
    [
        (
            f"SELECT albums.title, AVG(albums.list_price) {JOINED} GROUP BY albums.title",
            "What is the average rating of each album? Title and rating.",
            f"SELECT albums.title, AVG(reviews.rating) {JOINED} GROUP BY albums.title",
        ),
        ("SELECT MAX(album_id) FROM reviews", "The highest star ratings?", 'SELECT MAX("Star Rating") FROM reviews'),
        ("SELECT SUM(album_id) FROM reviews", "The total rating?", "SELECT SUM(rating) FROM reviews"),
    ],
)
def test_the_named_column_is_measured(sql: str, question: str, then: str) -> None:
    assert measure_said(sql, SCHEMA, question) == then
    assert measure_said(then, SCHEMA, question) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT AVG(list_price) FROM albums", "What is the average list price?"),
        ("SELECT AVG(list_price) FROM albums", "What is the average rating?"),  # which FROM does not have
        ("SELECT AVG(rating) FROM reviews", "What is the average note?"),  # no number
        ("SELECT MAX(album_id) FROM reviews", "The average rating?"),  # another measure
        ("SELECT AVG(album_id), MAX(album_id) FROM reviews", "The average rating?"),
        ("SELECT AVG(fastestlapspeed) FROM laps", "The average fastest lap speed?"),  # begins with another's name
        (
            "SELECT album_id FROM reviews WHERE rating > (SELECT AVG(album_id) FROM reviews)",
            "Above the average rating?",
        ),
        ("SELECT COUNT(*) FROM reviews", "The average rating?"),
        ("SELECT AVG(album_id FROM reviews", "The average rating?"),
    ],
)
def test_other_measures_stay(sql: str, question: str) -> None:
    assert measure_said(sql, SCHEMA, question) is None
