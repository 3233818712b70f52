"""Both ends of a column are two values."""

import pytest

from tools.repair.shape.show_extremes import show_extremes
from tools.schema import Schema

NOTHING = Schema((), "sqlite")
FIRST = "SELECT age FROM student ORDER BY age DESC LIMIT 1"


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("The ages of the oldest and youngest students?", "MAX(age), MIN(age)"),
        ("The minimum and the maximum age?", "MIN(age), MAX(age)"),
        ("The oldest student's age?", None),
        ("The highest and the average age?", None),
    ],
)
def test_both_are_shown(question: str, shown: str | None) -> None:
    assert show_extremes(FIRST, NOTHING, question) == (f"SELECT {shown} FROM student" if shown else None)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM student ORDER BY age DESC LIMIT 1",  # who it is, not how old
        "SELECT age FROM student ORDER BY age DESC LIMIT 3",
        "SELECT age FROM student ORDER BY age DESC LIMIT 1 OFFSET 1",
        "SELECT age, name FROM student ORDER BY age DESC LIMIT 1",
        "SELECT age FROM student GROUP BY age ORDER BY age DESC LIMIT 1",
        "SELECT MAX(age) FROM student",
    ],
)
def test_other_queries_stay(sql: str) -> None:
    assert show_extremes(sql, NOTHING, "The ages of the oldest and the youngest?") is None
