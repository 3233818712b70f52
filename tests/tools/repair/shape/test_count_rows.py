"""How many there are is a number; a list is left as it is wherever it may be what was asked for."""

import pytest

from tools.repair.shape.count_rows import count_rows
from tools.schema import Column, Schema, Table

LINE = Table(
    "order_lines", (Column("returned", "DATE"), Column("reason", "TEXT"), Column("order_line_count", "INTEGER"))
)
SCHEMA = Schema((LINE, Table("faculty", (Column("faculty", "INTEGER"),))), "duckdb")
QUESTION = "How many order lines came back late?"


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        ("SELECT reason FROM order_lines", "SELECT COUNT(*) FROM order_lines"),
        ("SELECT * FROM order_lines WHERE reason = 'late'", "SELECT COUNT(*) FROM order_lines WHERE reason = 'late'"),
    ],
)
def test_rows_are_counted(sql: str, then: str) -> None:
    assert count_rows(sql, SCHEMA, QUESTION) == then
    assert count_rows(then, SCHEMA, QUESTION) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT reason FROM order_lines", "Which order lines came back?"),
        ("SELECT reason FROM order_lines", "List the order lines and how many order lines there are"),
        ("SELECT reason, returned FROM order_lines", QUESTION),
        ("SELECT MAX(returned) FROM order_lines", QUESTION),
        ("SELECT DISTINCT reason FROM order_lines", QUESTION),
        ("SELECT reason FROM order_lines GROUP BY reason", QUESTION),
        ("SELECT reason FROM order_lines LIMIT 1", QUESTION),
        ("SELECT reason FROM order_lines UNION SELECT reason FROM order_lines", QUESTION),
        ("SELECT order_line_count FROM order_lines", QUESTION),  # which holds the number
        ("SELECT faculty FROM faculty", "How many faculty are there?"),  # a column has the number
        ("SELECT reason FROM", QUESTION),
    ],
)
def test_lists_stay(sql: str, question: str) -> None:
    assert count_rows(sql, SCHEMA, question) is None
