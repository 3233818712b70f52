"""A gender that the question names becomes a condition, unless the statement has one or the column is open."""

import pytest

from tools.linking.match_values import ValueMatch
from tools.repair.literals.add_genders import add_genders
from tools.schema import Column, Schema, Table

MEMBER = Table("member", (Column("name", "TEXT"), Column("sex", "TEXT"), Column("club", "TEXT")))
SCHEMA = Schema((MEMBER, Table("club", (Column("id", "TEXT"), Column("sex", "TEXT")))), "sqlite")
FEMALE = ValueMatch("member", "sex", "F", "female", 0.9)


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        ("SELECT name FROM member", "SELECT name FROM member WHERE sex = 'F'"),
        ("SELECT name FROM member WHERE club = 'a'", "SELECT name FROM member WHERE club = 'a' AND sex = 'F'"),
        (
            "SELECT m.name FROM member AS m JOIN club ON m.club = club.id",
            "SELECT m.name FROM member AS m JOIN club ON m.club = club.id WHERE m.sex = 'F'",
        ),
    ],
)
def test_the_condition_is_added(sql: str, then: str) -> None:
    assert add_genders(sql, SCHEMA, [FEMALE]) == then
    assert add_genders(then, SCHEMA, [FEMALE]) is None


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("SELECT name FROM member", ()),
        ("SELECT name FROM member", (ValueMatch("member", "club", "F", "F", 1.0),)),  # no word for a gender
        ("SELECT name FROM member", (FEMALE, ValueMatch("member", "sex", "M", "male", 0.9))),
        ("SELECT id FROM club", (FEMALE,)),  # another table's
        ("SELECT name, sex FROM member", (FEMALE,)),
        ("SELECT name FROM member EXCEPT SELECT name FROM member", (FEMALE,)),
        ("SELECT name FROM member WHERE name IN (SELECT id FROM club)", (FEMALE,)),
        ("SELECT name FROM", (FEMALE,)),
    ],
)
def test_what_stays(sql: str, values: tuple[ValueMatch, ...]) -> None:
    assert add_genders(sql, SCHEMA, values) is None
