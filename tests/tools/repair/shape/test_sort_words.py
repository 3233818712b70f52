"""An alphabetical order is one of words."""

import pytest

from tools.repair.shape.sort_words import sort_words
from tools.schema import Column, Schema, Table

PILOT = Table("pilot", (Column("name", "TEXT"), Column("town", "TEXT"), Column("age", "INTEGER")))
SCHEMA = Schema((PILOT,), "sqlite")
QUESTION = "List the pilots in alphabetical order."


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        ("SELECT name FROM pilot ORDER BY age DESC", "SELECT name FROM pilot ORDER BY name DESC"),
        ("SELECT name, age FROM pilot ORDER BY age", "SELECT name, age FROM pilot ORDER BY name"),
    ],
)
def test_the_key_becomes_the_words(sql: str, then: str) -> None:
    assert sort_words(sql, SCHEMA, QUESTION) == then
    assert sort_words(then, SCHEMA, QUESTION) is None
    assert sort_words(sql, SCHEMA, "List the pilots by age.") is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM pilot",
        "SELECT name FROM pilot ORDER BY town",
        "SELECT name, town FROM pilot ORDER BY age",  # two that it could be
        "SELECT age FROM pilot ORDER BY age",
        "SELECT name FROM pilot ORDER BY age LIMIT 1",
        "SELECT name FROM pilot GROUP BY name ORDER BY COUNT(*)",
        "SELECT name FROM pilot ORDER BY age, name",
    ],
)
def test_other_orders_stay(sql: str) -> None:
    assert sort_words(sql, SCHEMA, QUESTION) is None
