"""Negations and counted groups: what a question surely says of them, and where it leaves them open."""

import pytest

from tools.linking.said.said_clauses import said_clauses
from tools.schema import Column, Schema, Table

SCHEMA = Schema(
    (
        Table("airports", (Column("city", "TEXT"),)),
        Table("planes", (Column("number_of_seats", "INTEGER"), Column("airport", "TEXT"))),
        Table("seats", (Column("plane", "TEXT"),)),
    ),
    "sqlite",
)


@pytest.mark.parametrize(
    ("question", "unsaid"),
    [
        ("Which airports are in Paris?", True),
        ("Which airports are outside of Paris?", False),
        ("Which are unaffected?", False),
        ("Which airports have different cities?", False),
        ("Which aren't in Paris?", False),
    ],
)
def test_where_a_negation_is_not_meant(question: str, unsaid: bool) -> None:
    assert ("<>" in said_clauses(SCHEMA, question).unsaid) == unsaid
    assert not said_clauses(SCHEMA, question, negated=False).unsaid


@pytest.mark.parametrize(
    ("question", "counted"),
    [
        ("Which cities have more than 3 airports?", True),
        ("Which cities have at least two airports?", True),
        ("Which have more than one plane?", True),
        ("Which have at least one plane?", False),  # a join says it
        ("Which have more than 300 airports?", False),  # hardly rows of a table
        ("Which planes have more than 3 seats?", False),  # a column holds the number
        ("For all cities with more than one airport, list these.", False),
        ("Which have more than 3 runways?", False),
    ],
)
def test_where_groups_are_counted(question: str, counted: bool) -> None:
    assert (frozenset({"count"}) in said_clauses(SCHEMA, question).needed) == counted
    assert said_clauses(SCHEMA, question, having=False).needed == ()
