"""What is counted for each of something, and what is said of both, needs its table; other tables are not certain."""

import pytest

from tools.linking.said.said_tables import said_tables
from tools.schema import Column, ForeignKey, Schema, Table

GENRE = Table("genres", (Column("id", "INTEGER", True), Column("family", "TEXT")))
ALBUM = Table(
    "albums",
    (Column("id", "INTEGER", True), Column("genre_id", "INTEGER")),
    (ForeignKey(("genre_id",), "genres", ("id",)),),
)
LINE = Table("order_lines", (Column("album_id", "INTEGER"),), (ForeignKey(("album_id",), "albums", ("id",)),))
SCHEMA = Schema((GENRE, ALBUM, LINE), "sqlite")


@pytest.mark.parametrize(
    ("question", "tables"),
    [
        ("Number of albums per family", [{"albums", "order_lines"}]),
        ("How many order lines are there for each album?", [{"order_lines"}]),
        ("How many albums does every genre have?", [{"albums", "order_lines"}]),
        ("Which are both albums and genres?", [{"albums"}, {"genres"}]),
        ("How many albums are there?", []),
        ("The number of families per genre", []),
        ("Both the albums", []),
        ("Which genres have albums?", []),
    ],
)
def test_tables_that_are_needed(question: str, tables: list[set[str]]) -> None:
    assert list(map(set, said_tables(SCHEMA, question))) == tables
