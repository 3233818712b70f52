"""x = 'a' AND x = 'b' is rewritten as people mean it, and nothing else is changed."""

import sqlite3

import pytest

from tools.repair.literals.separate_values import separate_values
from tools.schema import Column, Schema, Table

SCHEMA = Schema((Table("pet", (Column("owner", "TEXT"), Column("kind", "TEXT"), Column("age", "INTEGER"))),), "sqlite")
PETS = [
    ("Ann", "cat", 3),
    ("Ann", "dog", 5),
    ("Bob", "dog", 5),
    ("Cy", "cat", 3),
    ("Dee", "bird", 1),
    ("Ann", "bird", 2),
]


def rows(sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE pet (owner, kind, age)")
        database.executemany("INSERT INTO pet VALUES (?, ?, ?)", PETS)
        return sorted(database.execute(sql).fetchall())


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("SELECT owner FROM pet WHERE kind = 'cat' AND kind = 'dog'", [("Ann",)]),
        ("SELECT owner FROM pet WHERE kind = 'cat' AND Kind = 'dog' AND age > 2", [("Ann",)]),
        ("SELECT owner FROM pet WHERE kind = 'dog' AND kind = 'bird' AND kind = 'dog'", [("Ann",)]),
        ("SELECT COUNT(*) FROM pet WHERE kind = 'cat' AND kind = 'dog'", [(4,)]),
        ("SELECT SUM(age), MAX(age) FROM pet WHERE age < 4 AND kind = 'cat' AND kind = 'bird'", [(9, 3)]),
        ("SELECT p.owner FROM pet AS p WHERE p.age = 5 AND p.age = 2", [("Ann",)]),
    ],
)
def test_two_values_at_once_are_taken_apart(sql: str, meant: list[tuple[object, ...]]) -> None:
    separated = separate_values(sql, SCHEMA)
    assert separated is not None
    assert rows(separated) == meant


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT owner FROM pet WHERE kind = 'cat' AND age = 3",
        "SELECT owner FROM pet WHERE kind = 'cat' AND kind = 'cat'",
        "SELECT owner FROM pet WHERE kind = 'cat' OR kind = 'dog'",
        "SELECT owner FROM pet WHERE kind = 'cat' AND kind = owner",
        "SELECT owner FROM pet WHERE kind = 'cat' AND kind = 'dog' AND kind = 'bird'",
        "SELECT a.owner FROM pet AS a JOIN pet AS b ON a.owner = b.owner WHERE a.kind = 'cat' AND b.kind = 'dog'",
        "SELECT owner FROM pet WHERE kind = 'cat' AND kind = 'dog' ORDER BY age LIMIT 1",
        "SELECT owner, COUNT(*) FROM pet WHERE kind = 'cat' AND kind = 'dog' GROUP BY owner",
        "SELECT owner FROM pet",
        "SELECT owner FROM",
    ],
)
def test_everything_else_stays(sql: str) -> None:
    assert separate_values(sql, SCHEMA) is None
