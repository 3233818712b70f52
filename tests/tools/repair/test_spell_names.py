"""Names get the schema's spelling, and nothing else changes."""

import pytest

from tools.repair.spell_names import spell_names
from tools.schema import Column, Schema, Table

TABLES = (
    Table("albums", (Column("album_id", "INTEGER"), Column("Title", "TEXT"))),
    Table("Order Lines", (Column("album_id", "INTEGER"),)),
)
SCHEMA = Schema(TABLES, "duckdb")


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        ("SELECT aLBUMS.title FROM aLBUMS", "SELECT albums.Title FROM albums"),
        ('SELECT "ALBUM_ID" FROM "order lines"', 'SELECT "album_id" FROM "Order Lines"'),
        ("SELECT a.TITLE FROM albums AS a", "SELECT a.Title FROM albums AS a"),
    ],
)
def test_names_are_spelled_as_the_schema_does(sql: str, then: str) -> None:
    assert spell_names(sql, SCHEMA) == then
    assert spell_names(then, SCHEMA) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT Title AS TITLE FROM albums",  # a name that the statement makes
        "SELECT Title FROM albums WHERE Title = 'ALBUMS'",
        "SELECT MadeUp FROM albums",
        "SELECT FROM WHERE",
    ],
)
def test_other_statements_stay(sql: str) -> None:
    assert spell_names(sql, SCHEMA) is None


def test_where_quotes_keep_capitals_nothing_is_spelled_anew() -> None:
    assert spell_names('SELECT "TITLE" FROM albums', Schema(TABLES, "postgresql")) is None
