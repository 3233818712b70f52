"""SELECT has the columns that the question's head lists, where FROM has them."""

import pytest

from tools.repair.shape.list_columns import list_columns
from tools.schema import Column, Schema, Table

WINE = Table("wine", tuple(Column(name, "TEXT") for name in ("grape", "winery", "price", "year")))
GRAPES = Table("grapes", (Column("grape", "TEXT"), Column("color", "TEXT")))
SCHEMA = Schema((WINE, GRAPES), "sqlite")
THREE = "List the winery, price and year of the red wines."


@pytest.mark.parametrize(
    ("sql", "question", "then"),
    [
        ("SELECT winery, price FROM wine", THREE, "SELECT winery, price, year FROM wine"),
        ("SELECT winery, price, grape FROM wine", THREE, "SELECT winery, price, year FROM wine"),
        (
            "SELECT wine.winery, grapes.grape FROM wine JOIN grapes ON wine.grape = grapes.grape",
            "What are the wineries of the wines?",
            "SELECT wine.winery FROM wine JOIN grapes ON wine.grape = grapes.grape",
        ),
        (
            "SELECT DISTINCT winery FROM wine ORDER BY year LIMIT 3",
            "Find the price of the wines.",
            "SELECT DISTINCT price FROM wine ORDER BY year LIMIT 3",
        ),
    ],
)
def test_the_list_is_mended(sql: str, question: str, then: str) -> None:
    assert list_columns(sql, SCHEMA, question) == then
    assert list_columns(then, SCHEMA, question) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT year, winery, price FROM wine", THREE),  # the order means nothing
        ("SELECT grape FROM grapes", THREE),  # FROM lacks the columns
        ("SELECT winery, COUNT(*) FROM wine GROUP BY winery", THREE),
        ("SELECT * FROM wine", THREE),
        ("SELECT winery FROM wine ORDER BY 1", THREE),
        ("SELECT winery FROM wine UNION SELECT price FROM wine", THREE),
        ("SELECT wine.price FROM wine JOIN grapes", "Find the grape of the wines."),  # both tables have it
        ("SELECT winery FROM wine", "Which wines are red?"),
    ],
)
def test_it_is_left_alone(sql: str, question: str) -> None:
    assert list_columns(sql, SCHEMA, question) is None
