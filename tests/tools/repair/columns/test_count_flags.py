"""A flag that is counted stands for the rows in which it is set."""

import pytest

from tools.repair.columns.count_flags import count_flags
from tools.schema import Column, Schema, Table

CUSTOMER = Table("customers", (Column("city", "TEXT"), Column("newsletter", "BOOLEAN"), Column("age", "INTEGER")))
SCHEMA = Schema((CUSTOMER,), "duckdb")


@pytest.mark.parametrize(
    ("sql", "question", "then"),
    [
        (
            "SELECT COUNT(newsletter) FROM customers",
            "How many customers get the newsletter?",
            "SELECT COUNT(*) FROM customers WHERE newsletter",
        ),
        (
            "SELECT COUNT(DISTINCT newsletter) AS n FROM customers WHERE city = 'Lyon'",
            "The number of readers in Lyon?",
            "SELECT COUNT(*) AS n FROM customers WHERE city = 'Lyon' AND newsletter",
        ),
        (
            "SELECT COUNT(newsletter) FROM customers",
            "How many customers don't get the newsletter?",
            "SELECT COUNT(*) FROM customers WHERE NOT newsletter",
        ),
    ],
)
def test_rows_are_counted(sql: str, question: str, then: str) -> None:
    assert count_flags(sql, SCHEMA, question) == then
    assert count_flags(then, SCHEMA, question) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT COUNT(age) FROM customers", "How many customers?"),
        ("SELECT COUNT(newsletter) FROM customers WHERE newsletter", "How many customers get it?"),
        ("SELECT newsletter, COUNT(newsletter) FROM customers GROUP BY newsletter", "How many get it or not?"),
        ("SELECT COUNT(newsletter) FROM customers", "Which values are there?"),
        ("SELECT COUNT(newsletter FROM customers", "How many customers?"),
    ],
)
def test_other_counts_stay(sql: str, question: str) -> None:
    assert count_flags(sql, SCHEMA, question) is None
