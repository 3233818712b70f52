"""LIKE gets the wildcards that the question says, and keeps its own where the question says none."""

import pytest

from tools.repair.literals.set_wildcards import set_wildcards
from tools.schema import Schema

SCHEMA = Schema((), "sqlite")


@pytest.mark.parametrize(
    ("pattern", "question", "then"),
    [
        ("2", "Codes that start with 2", "2%"),
        ("%Orbit%", "Names beginning with Orbit", "Orbit%"),
        ("son", "Names that end with 'son'", "%son"),
        ("Orbit", "Names that contain Orbit", "%Orbit%"),
        ("Orbit%", "Names including Orbit", "%Orbit%"),
    ],
)
def test_the_pattern_is_what_is_said(pattern: str, question: str, then: str) -> None:
    sql = "SELECT * FROM item WHERE name LIKE '{}'"
    assert set_wildcards(sql.format(pattern), SCHEMA, question) == sql.format(then)
    assert set_wildcards(sql.format(then), SCHEMA, question) is None


@pytest.mark.parametrize(
    ("condition", "question"),
    [
        ("name LIKE 'Orbit'", "Names like Orbit"),
        ("name LIKE 'Orbit'", "Names that start with O and contain r"),
        ("name LIKE 'O%t'", "Names that start with O"),
        ("name LIKE 'A' OR name LIKE 'B'", "Names that start with A or B"),
        ("name = 'Orbit'", "Names that start with Orbit"),
        ("name LIKE other", "Names that start with Orbit"),
        ("year = 2", "Routes that start in Rome"),
    ],
)
def test_what_stays(condition: str, question: str) -> None:
    assert set_wildcards(f"SELECT * FROM item WHERE {condition}", SCHEMA, question) is None
