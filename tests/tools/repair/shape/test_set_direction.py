"""ORDER BY follows words that allow one direction only; everything else stays as it is."""

import pytest

from tools.repair.shape.set_direction import set_direction
from tools.schema import Column, Schema, Table

SCHEMA = Schema((), "sqlite")


@pytest.mark.parametrize(
    ("key", "question", "then"),
    [
        ("age LIMIT 1", "Who has the highest age?", "age DESC LIMIT 1"),
        ("COUNT(*) LIMIT 1", "Which one has the most songs?", "COUNT(*) DESC LIMIT 1"),
        ("COUNT(*) DESC LIMIT 1", "Which one has the fewest songs?", "COUNT(*) LIMIT 1"),
        ("name", "Names in descending order", "name DESC"),
        ("name DESC", "Names in alphabetical order", "name"),
        ("age", "Names, from old to young", "age DESC"),
        ("age LIMIT 1", "Who is the oldest?", "age DESC LIMIT 1"),
        ("birth_date LIMIT 1", "Who is the youngest?", "birth_date DESC LIMIT 1"),
        ("birth_date DESC LIMIT 1", "Who is the oldest?", "birth_date LIMIT 1"),
        ("year LIMIT 1", "What is the most recent song?", "year DESC LIMIT 1"),
    ],
)
def test_the_direction_is_the_one_that_is_said(key: str, question: str, then: str) -> None:
    assert set_direction(f"SELECT name FROM singer ORDER BY {key}", SCHEMA, question) == (
        f"SELECT name FROM singer ORDER BY {then}"
    )
    assert set_direction(f"SELECT name FROM singer ORDER BY {then}", SCHEMA, question) is None


@pytest.mark.parametrize(
    ("key", "question"),
    [
        ("age", "Who has the highest age?"),  # no LIMIT: perhaps sorted for another reason
        ("rank LIMIT 1", "Who has the highest rank?"),  # 1 is the highest
        ("birth_year LIMIT 1", "Who has the highest birth year?"),
        ("age LIMIT 1", "The most and the least"),
        ("date LIMIT 1", "The first song of the youngest singer"),
        ("date LIMIT 1", "The latest song of the oldest singer"),
        ("COUNT(year) LIMIT 1", "The oldest"),
        ("age LIMIT 1", "The most recent one"),
        ("age LIMIT 1", "Those with at most three songs"),
        ("age, name DESC", "In descending order"),  # two keys
        ("age", ""),
        ("age LIMIT", "In descending order"),  # no statement
    ],
)
def test_what_is_not_certain_stays(key: str, question: str) -> None:
    assert set_direction(f"SELECT name FROM singer ORDER BY {key}", SCHEMA, question) is None


def test_a_column_of_dates_is_known_by_its_type() -> None:
    store = Table("store", (Column("name", "VARCHAR"), Column("opened_on", "DATE")))
    sql = "SELECT name FROM store ORDER BY opened_on DESC LIMIT 1"
    turned = set_direction(sql, Schema((store,), "duckdb"), "Which is our oldest store?")
    assert turned == "SELECT name FROM store ORDER BY opened_on LIMIT 1"


def test_duckdb_keeps_its_place_for_nulls() -> None:
    schema = Schema((), "duckdb")
    sql, question = "SELECT name FROM singer ORDER BY age LIMIT 1", "Who has the highest age?"
    turned = set_direction(sql, schema, question)
    assert turned == "SELECT name FROM singer ORDER BY age DESC LIMIT 1"
    assert set_direction(turned, schema, "Who has the lowest age?") == sql
