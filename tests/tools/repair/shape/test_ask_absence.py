"""What is said to be missing is NULL; conditions that say something else stay."""

import pytest

from tools.repair.shape.ask_absence import ask_absence
from tools.schema import Column, Schema, Table

ARTIST = Table("artists", (Column("id", "INTEGER", True), Column("name", "TEXT"), Column("website", "TEXT")))
ALBUM = Table("albums", (Column("artist_id", "INTEGER"), Column("title", "TEXT")))
SCHEMA = Schema((ARTIST, ALBUM), "duckdb")
QUESTION = "Which artists have no website?"


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        (
            "SELECT name FROM artists WHERE id NOT IN (SELECT artist_id FROM albums)",
            "SELECT name FROM artists WHERE website IS NULL",
        ),
        ("SELECT COUNT(*) FROM artists WHERE website = 'none'", "SELECT COUNT(*) FROM artists WHERE website IS NULL"),
        ("SELECT name FROM artists", "SELECT name FROM artists WHERE website IS NULL"),
        (
            "SELECT a.name FROM artists AS a JOIN albums ON a.id = albums.artist_id",
            "SELECT a.name FROM artists AS a JOIN albums ON a.id = albums.artist_id WHERE a.website IS NULL",
        ),
    ],
)
def test_the_column_is_empty(sql: str, then: str) -> None:
    assert ask_absence(sql, SCHEMA, QUESTION) == then
    assert ask_absence(then, SCHEMA, QUESTION) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT name FROM artists WHERE id NOT IN (SELECT artist_id FROM albums)", "Which artists have no album?"),
        ("SELECT name FROM artists WHERE name = 'Ada'", QUESTION),
        ("SELECT name FROM artists WHERE website = 'x' AND name = 'Ada'", QUESTION),
        ("SELECT title FROM albums", QUESTION),
        ("SELECT name FROM artists UNION SELECT title FROM albums", QUESTION),
        ("SELECT name FROM artists GROUP BY name HAVING COUNT(*) > 1", QUESTION),
    ],
)
def test_other_conditions_stay(sql: str, question: str) -> None:
    assert ask_absence(sql, SCHEMA, question) is None
