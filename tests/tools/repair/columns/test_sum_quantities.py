"""How many copies were sold is a sum of quantities; how many rows there are is none."""

import pytest

from tools.repair.columns.sum_quantities import sum_quantities
from tools.schema import Column, Schema, Table

ALBUM = Table("albums", (Column("album_id", "INTEGER", primary_key=True), Column("title", "TEXT")))
LINE = Table(
    "order_lines",
    (Column("album_id", "INTEGER"), Column("format", "TEXT"), Column("quantity", "INTEGER"), Column("note", "TEXT")),
)
STOCK = Table(
    "stock", (Column("album_id", "INTEGER"), Column("Qty in Store", "INTEGER"), Column("quantity", "INTEGER"))
)
SCHEMA = Schema((ALBUM, LINE, STOCK), "sqlite")
JOINED = "FROM albums JOIN order_lines ON order_lines.album_id = albums.album_id WHERE albums.title = 'Tide'"


@pytest.mark.parametrize(
    ("sql", "question", "then"),
    [
        (
            f"SELECT COUNT(*) {JOINED}",
            "How many copies of Tide were sold?",
            f"SELECT SUM(order_lines.quantity) {JOINED}",
        ),
        (
            "SELECT COUNT(quantity) AS n FROM order_lines",
            "How many records have been bought?",
            "SELECT SUM(quantity) AS n FROM order_lines",
        ),
        ("SELECT COUNT(*) FROM order_lines", "how many cassettes did we sell", "SELECT SUM(quantity) FROM order_lines"),
    ],
)
def test_quantities_are_added_up(sql: str, question: str, then: str) -> None:
    assert sum_quantities(sql, SCHEMA, question) == then
    assert sum_quantities(then, SCHEMA, question) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT COUNT(*) FROM order_lines", "How many order lines were sold?"),  # rows
        ("SELECT COUNT(*) FROM order_lines", "How many cassettes are there?"),
        ("SELECT COUNT(*) FROM order_lines", "Which cassettes were sold?"),
        ("SELECT COUNT(DISTINCT album_id) FROM order_lines", "How many albums were sold?"),
        ("SELECT COUNT(note) FROM order_lines", "How many records were sold?"),
        ("SELECT COUNT(*) FROM albums", "How many albums were sold?"),
        ("SELECT COUNT(*) FROM stock", "How many records were sold?"),  # which of the two?
        ("SELECT format, COUNT(*) FROM order_lines GROUP BY format", "How many records were sold of each format?"),
        ("SELECT COUNT(* FROM order_lines", "How many records were sold?"),
    ],
)
def test_rows_are_counted(sql: str, question: str) -> None:
    assert sum_quantities(sql, SCHEMA, question) is None
