"""A literal at the wrong column is moved to the one that holds it, and nothing else is changed."""

import pytest

from tools.linking.match_values import ValueMatch
from tools.repair.literals.move_literals import move_literals
from tools.schema import Column, ForeignKey, Schema, Table

SCHEMA = Schema(
    (
        Table(
            "hero",
            (
                Column("id", "INTEGER", True),
                Column("name", "TEXT"),
                Column("alias", "TEXT"),
                Column("publisher_id", "INTEGER"),
            ),
            (ForeignKey(("publisher_id",), "publisher", ("id",)),),
        ),
        Table("publisher", (Column("id", "INTEGER", True), Column("title", "TEXT"))),
        Table("movie", (Column("title", "TEXT"),)),
    ),
    "sqlite",
)


def found(table: str, column: str, value: str, score: float = 1.0) -> ValueMatch:
    return ValueMatch(table, column, value, value, score)


DC = found("publisher", "title", "DC Comics")


@pytest.mark.parametrize(
    ("sql", "values", "moved"),
    [
        (
            "SELECT COUNT(*) FROM hero WHERE name = 'DC Comics'",
            [DC],
            "SELECT COUNT(*) FROM hero JOIN publisher ON hero.publisher_id = publisher.id WHERE publisher.title = 'DC Comics'",
        ),
        ("SELECT id FROM hero WHERE id = 'Bo'", [found("hero", "name", "Bo")], "SELECT id FROM hero WHERE name = 'Bo'"),
        (
            "SELECT id FROM hero WHERE name = 'bo'",
            [found("hero", "name", "Bo")],
            "SELECT id FROM hero WHERE name = 'Bo'",
        ),
        ("SELECT id FROM hero WHERE name = 'Bo'", [found("hero", "name", "Bo"), DC], None),  # it is where it belongs
        (
            "SELECT id FROM hero WHERE id = 'Bo'",
            [found("hero", "name", "Bo"), found("hero", "alias", "Bo")],
            None,
        ),  # two ways
        (
            "SELECT hero.id FROM hero JOIN publisher ON hero.publisher_id = publisher.id WHERE hero.name = 'Bo'",
            [found("hero", "alias", "Bo"), found("publisher", "title", "Bo")],  # the nearer one
            "SELECT hero.id FROM hero JOIN publisher ON hero.publisher_id = publisher.id WHERE hero.alias = 'Bo'",
        ),
        ("SELECT id FROM hero WHERE name = 'Up'", [found("movie", "title", "Up")], None),  # nothing joins it
        ("SELECT id FROM hero WHERE name = 'Bo'", [found("hero", "alias", "Bo", 0.5)], None),  # perhaps not meant
        ("SELECT id FROM hero WHERE name = 'Bo", [DC], None),  # no SQL
    ],
)
def test_what_is_moved(sql: str, values: list[ValueMatch], moved: str | None) -> None:
    assert move_literals(sql, SCHEMA, values) == moved
    assert moved is None or move_literals(moved, SCHEMA, values) is None
