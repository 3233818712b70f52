"""A number is compared as the question bounds it; whatever is said otherwise stays."""

import pytest

from tools.repair.literals.set_bounds import set_bounds
from tools.schema import Schema

SCHEMA = Schema((), "sqlite")


@pytest.mark.parametrize(
    ("condition", "question", "then"),
    [
        ("age = 25", "Pilots aged 25 or older", "age >= 25"),
        ("age < 30", "Pilots aged 30 or younger", "age <= 30"),
        ("age > 3", "Pilots of at least three years", "age >= 3"),
        ("age < 3", "Pilots of no more than 3 years", "age <= 3"),
        ("age >= 3", "Pilots of more than 3 years", "age > 3"),
        ("age > 20", "Pilots younger than 20", "age < 20"),
        ("pay < 20", "Pilots who are dearer than 20", "pay > 20"),
        ("pay < (SELECT AVG(pay) FROM pilot)", "Pilots dearer than the average", "pay > (SELECT AVG(pay) FROM pilot)"),
        ("pay > (SELECT AVG(pay) FROM pilot)", "Pilots paid below average", "pay < (SELECT AVG(pay) FROM pilot)"),
        ("age > 30 OR age <= 20", "Pilots older than 30 or younger than 20", "age > 30 OR age < 20"),
    ],
)
def test_the_bound_is_the_one_that_is_said(condition: str, question: str, then: str) -> None:
    assert set_bounds(f"SELECT * FROM pilot WHERE {condition}", SCHEMA, question) == f"SELECT * FROM pilot WHERE {then}"
    assert set_bounds(f"SELECT * FROM pilot WHERE {then}", SCHEMA, question) is None


def test_groups_are_bounded_too() -> None:
    sql = "SELECT name FROM pilot GROUP BY name HAVING COUNT(*) > 2"
    assert set_bounds(sql, SCHEMA, "Who flew at least two times?") == sql.replace("> 2", ">= 2")


@pytest.mark.parametrize(
    ("condition", "question"),
    [
        ("age = 25", "Pilots aged 25"),
        ("age = 25 OR wins = 25", "Pilots aged 25 or older"),  # which of the two?
        ("age = 25", "More than 25 pilots who are younger than 25"),
        ("NOT age > 25", "Pilots of at least 25 years"),  # the rest is meant
        ("age > (SELECT 25)", "Pilots of at least 25 years"),
        ("age IN (25)", "Pilots of at least 25 years"),
        ("pay < (SELECT AVG(pay) FROM pilot)", "Pilots not dearer than the average"),
        ("pay < (SELECT MAX(pay) FROM pilot)", "Pilots dearer than the average"),
        ("pay < (SELECT AVG(pay) FROM pilot)", "Pilots dearer than the average, older than average, below average"),
        ("age + 1 > 25", "Pilots of at least 25 years"),
    ],
)
def test_what_stays(condition: str, question: str) -> None:
    assert set_bounds(f"SELECT * FROM pilot WHERE {condition}", SCHEMA, question) is None
