"""What a question says is missing is a column that may be empty, and never the rows of a table."""

import pytest

from tools.linking.said.absent_columns import absent_columns
from tools.schema import Column, ForeignKey, Schema, Table

ARTIST = Table(
    "artists",
    (
        Column("id", "INTEGER", True),
        Column("name", "TEXT", nullable=False),
        Column("website", "TEXT"),
        Column("manager_id", "INTEGER"),
    ),
    (ForeignKey(("manager_id",), "artists", ("id",)),),
)
ALBUM = Table("albums", (Column("title", "TEXT"), Column("label", "TEXT"), Column("album_note", "TEXT")))
CUSTOMER = Table("customers", (Column("email", "TEXT"), Column("birth_date", "DATE")))
SCHEMA = Schema((ARTIST, ALBUM, CUSTOMER), "sqlite")


@pytest.mark.parametrize(
    ("question", "column"),
    [
        ("Artists without a website", "website"),
        ("Which artists have no web page?", "website"),
        ("How many albums have no label?", "label"),
        ("Customers who don't have an e-mail address", "email"),
        ("Which customers lack a birth date?", "birth_date"),
        ("Which customers have no date of birth?", "birth_date"),
        ("How many have no label?", "label"),
    ],
)
def test_an_empty_column_is_meant(question: str, column: str) -> None:
    assert [name for _, name in absent_columns(SCHEMA, question)] == [column]


@pytest.mark.parametrize(
    "question",
    [
        "Artists with a website",
        "Which artists have no albums?",
        "Artists that have no album note",  # albums are rows
        "Which artists have no name?",  # it is never empty
        "Which artists have no manager?",  # a key
        "Artists that have no label",  # of albums, which are not named
        "Albums that have no more than one label",
    ],
)
def test_rows_and_keys_are_not(question: str) -> None:
    assert absent_columns(SCHEMA, question) == frozenset()
