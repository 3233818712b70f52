"""A date that is held equal to 1 stands for the first; a year that is said, and names, are left alone."""

import pytest

from tools.repair.shape.take_first import take_first
from tools.schema import Column, Schema, Table

STORE = Table(
    "stores",
    (Column("name", "TEXT"), Column("opened_on", "DATE"), Column("formed_year", "INTEGER"), Column("size", "INTEGER")),
)
SCHEMA = Schema((STORE,), "duckdb")


@pytest.mark.parametrize(
    ("sql", "question", "then"),
    [
        ("SELECT name FROM stores WHERE opened_on = 0", "Last?", "SELECT name FROM stores ORDER BY opened_on DESC LIMIT 1"),
        ("SELECT name FROM stores WHERE opened_on = '1'", "First?", "SELECT name FROM stores ORDER BY opened_on LIMIT 1"),
        (
            "SELECT name FROM stores WHERE size > 3 AND formed_year = 1",
            "The earliest of more than 3? Give first and last names.",
            "SELECT name FROM stores WHERE size > 3 ORDER BY formed_year LIMIT 1",
        ),
    ],
)  # fmt: skip
def test_the_first_row_is_taken(sql: str, question: str, then: str) -> None:
    assert take_first(sql, SCHEMA, question) == then
    assert take_first(then, SCHEMA, question) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT name FROM stores WHERE formed_year = 1985", "Which was formed first, in 1985?"),
        ("SELECT name FROM stores WHERE size = 1", "Which is the first of size 1?"),
        ("SELECT name FROM stores WHERE formed_year > 1", "Which was formed first?"),
        ("SELECT name FROM stores WHERE formed_year = 1", "First and last names of year 1"),
        ("SELECT name FROM stores WHERE formed_year = 1", "Which was formed in year 1?"),
        ("SELECT name FROM stores WHERE formed_year = 1", "The first and the last?"),
        ("SELECT COUNT(*) FROM stores WHERE formed_year = 1", "How many were first?"),
        ("SELECT name FROM stores WHERE formed_year = 1 ORDER BY size", "Which was formed first?"),
        ("SELECT name FROM stores WHERE formed_year = 1 OR size = 2", "Which was formed first?"),
        ("SELECT name FROM stores WHERE", "Which was formed first?"),
    ],
)
def test_other_conditions_stay(sql: str, question: str) -> None:
    assert take_first(sql, SCHEMA, question) is None


def test_sqlite_keeps_its_own_order_of_nothing() -> None:
    found = take_first("SELECT name FROM stores WHERE opened_on = 0", Schema((STORE,), "sqlite"), "Opened first?")
    assert found == "SELECT name FROM stores ORDER BY opened_on LIMIT 1"
