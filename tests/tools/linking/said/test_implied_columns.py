"""How a question compares says by what, where one column fits; where several or none do, nothing is said."""

import pytest

from tools.linking.match_values import ValueMatch
from tools.linking.said.implied_columns import implied_columns
from tools.schema import Column, ForeignKey, Schema, Table

ALBUM = Table(
    "albums",
    (Column("id", "INTEGER", True), Column("title", "TEXT"), Column("list_price", "REAL"), Column("released", "DATE")),
)
STAFF = Table(
    "employees",
    (Column("name", "TEXT"), Column("monthly_salary", "REAL"), Column("birth_date", "DATE"), Column("hired", "DATE")),
)
LINE = Table(
    "lines",
    (Column("album_id", "INTEGER"), Column("unit_price", "REAL"), Column("play_length", "INTEGER")),
    (ForeignKey(("album_id",), "albums", ("id",)),),
)
SCHEMA = Schema((ALBUM, STAFF, LINE), "sqlite")


@pytest.mark.parametrize(
    ("question", "column"),
    [
        ("Which albums cost more than 30 euros?", "list_price"),
        ("Albums cheaper than the average", "list_price"),
        ("Who earns the most?", "monthly_salary"),
        ("Who is the best-paid employee?", "monthly_salary"),
        ("Who are the best paid employees?", "monthly_salary"),
        ("Who is the youngest employee?", "birth_date"),
        ("The oldest employee, please", "birth_date"),
        ("What is the newest album?", "released"),
        ("The most recently released album?", "released"),
        ("Which line is longest?", "play_length"),
    ],
)
def test_a_column_is_meant(question: str, column: str) -> None:
    (places,) = implied_columns(SCHEMA, question)
    assert [name for _, name in places] == [column]


@pytest.mark.parametrize(
    "question",
    [
        "Which is the cheapest?",  # two prices, and no table is named
        "Which albums and lines are cheap?",  # the same
        "Who was paid in cash?",
        "How many albums are there?",
        "The latest employee",  # two dates
        "What is the newest?",
        "Which album is the heaviest?",
        "The longest album",
    ],
)
def test_nothing_is_certain(question: str) -> None:
    assert implied_columns(SCHEMA, question) == ()


def test_words_of_values_imply_nothing() -> None:
    found = [ValueMatch("albums", "title", "The Oldest Song", "The Oldest Song", 1.0)]
    assert implied_columns(SCHEMA, "Is The Oldest Song an album?", found) == ()
    assert implied_columns(SCHEMA, "Is The Oldest Song an album?") != ()
