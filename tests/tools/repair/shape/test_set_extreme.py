"""MIN and MAX follow the question where its words allow one of them only."""

import pytest

from tools.repair.shape.set_extreme import set_extreme
from tools.schema import Column, Schema, Table

ALBUM = Table(
    "album", (Column("title", "TEXT"), Column("released", "DATE"), Column("price", "REAL"), Column("rank", "INTEGER"))
)
SCHEMA = Schema((ALBUM,), "duckdb")


def own(extreme: str, column: str = "released") -> str:
    return f"SELECT title FROM album WHERE {column} = (SELECT {extreme}({column}) FROM album)"


@pytest.mark.parametrize(
    ("sql", "question", "then"),
    [
        (own("MAX"), "Which album is the oldest?", own("MIN")),
        (own("MIN"), "The latest album", own("MAX")),
        (own("MIN", "price"), "The album of the highest price", own("MAX", "price")),
    ],
)
def test_the_extreme_is_the_one_that_is_said(sql: str, question: str, then: str) -> None:
    assert set_extreme(sql, SCHEMA, question) == then
    assert set_extreme(then, SCHEMA, question) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        (own("MAX"), "Which album is the best?"),
        (own("MAX"), "The oldest and the newest album"),
        (own("MAX", "rank"), "The album of the lowest rank"),  # the best may have the highest number
        ("SELECT MAX(released) FROM album", "The oldest album's day"),
        ("SELECT title FROM album WHERE released > (SELECT MAX(released) FROM album)", "The oldest album"),
        ("SELECT title FROM album WHERE released = (SELECT MAX(price) FROM album)", "The oldest album"),
        (own("MAX") + " AND price = (SELECT MAX(price) FROM album)", "The oldest album"),
    ],
)
def test_other_extremes_stay(sql: str, question: str) -> None:
    assert set_extreme(sql, SCHEMA, question) is None
