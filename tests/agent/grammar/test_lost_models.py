"""What a lost model wrote and databases refused: each cause is a place where the grammar now offers nothing of the kind.

The causes are those of SmolLM2-Instruct on Spider's dev questions (log/grammar.md).
"""

import pytest

from agent.grammar.facts import facts_of
from agent.grammar.machine import beginning
from agent.grammar.scope import catalog_of
from tests.agent.grammar.test_grammar_gold import accepted_until
from tools.linking.mentions import QuestionContext
from tools.schema import Column, ForeignKey, Schema, Table

SCHEMA = Schema(
    (
        Table(
            "singer",
            (
                Column("singer_id", "INTEGER", True),
                Column("Name", "TEXT", samples=("Ann", "Bob")),
                Column("Age", "INTEGER"),
            ),
        ),
        Table(
            "concert",
            (Column("concert_id", "INTEGER", True), Column("Title", "TEXT"), Column("singer_id", "INTEGER")),
            foreign_keys=(ForeignKey(("singer_id",), "singer", ("singer_id",)),),
        ),
        Table("parts", (Column("part", "TEXT"),)),
    ),
    "sqlite",
)
ID = "singer.singer_id = concert.singer_id"
SELVES = " ".join(f"JOIN singer AS a{number} ON singer.singer_id = a{number}.singer_id" for number in range(1, 3))


def refused_at(sql: str, dialect: str = "sqlite", long: int | None = None) -> str:
    """What the bound grammar does not take any more of the statement; nothing where it takes it whole."""
    facts = facts_of(SCHEMA, QuestionContext("Which singers are there?"))
    place = accepted_until(beginning(catalog_of(SCHEMA, dialect, facts), lines=True, long=long), sql)
    return "" if place is None else sql[place:]


@pytest.mark.parametrize("sql", ["SELECT * FROM singer, concert", "SELECT * FROM singer JOIN concert ON TRUE"])
def test_a_model_that_was_trained_on_such_answers_may_write_products(sql: str) -> None:
    facts = facts_of(SCHEMA, QuestionContext("Which singers are there?"))
    assert accepted_until(beginning(catalog_of(SCHEMA, "sqlite", facts, products=True)), sql) is None
    assert accepted_until(beginning(catalog_of(SCHEMA, "sqlite", facts)), sql) is not None


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    ("sql", "rest"),
    [
        # The enclosing list means concert's singer_id already: another would be ambiguous.
        ("SELECT singer_id, concert.Title FROM (SELECT singer_id FROM singer)", "FROM singer)"),
        ("SELECT singer_id, concert.Title FROM (SELECT 1 AS singer_id)", ")"),
        ("SELECT singer_id, concert.Title FROM (SELECT *", "*"),
        ("SELECT * FROM singer JOIN (SELECT Title FROM concert) ON Title = Title JOIN concert", "concert"),
        # Two sources have the column that the alias hides, and databases look for columns first.
        (
            f"SELECT singer.singer_id AS singer_id FROM singer JOIN concert ON {ID} GROUP BY singer_id ORDER",
            "_id ORDER",
        ),
        (f"SELECT singer.singer_id AS singer_id FROM singer JOIN concert ON {ID} WHERE singer_id = 1", "_id = 1"),
        # Every row with every other.
        ("SELECT * FROM singer, concert", ", concert"),
        ("SELECT * FROM singer CROSS JOIN concert", "CROSS JOIN concert"),
        ("SELECT * FROM singer JOIN concert ON TRUE", "TRUE"),
        ("SELECT * FROM parts, parts AS T1, parts AS T2", ", parts AS T2"),
        (
            f"SELECT * FROM singer {SELVES} JOIN singer AS a3 ON singer.singer_id = a3.singer_id",
            "singer AS a3 ON singer.singer_id = a3.singer_id",
        ),
        # A condition between a table and itself joins nothing.
        ("SELECT * FROM singer JOIN concert ON singer.singer_id = CAST(singer.singer_id", "singer.singer_id"),
        # A minus that no number may follow.
        ("SELECT * FROM singer WHERE Name = -1", "-1"),
        ("SELECT Name FROM singer WHERE Name LIKE 'A%' ESCAPE 'ab'", "ab'"),
        ("SELECT printf('%s', Name) FROM singer", "rintf('%s', Name) FROM singer"),
        ("SELECT " + "abs(" * 7, "bs("),
    ],
)
def test_what_a_database_refuses_is_not_offered(sql: str, rest: str, dialect: str) -> None:
    assert refused_at(sql, dialect) == rest


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT Name FROM (SELECT Name FROM singer WHERE Age > 1)",
        "SELECT Name FROM (SELECT * FROM singer)",
        "SELECT singer_id, concert.Title FROM (SELECT singer_id AS other FROM singer) JOIN concert ON other = 1",
        "SELECT * FROM parts, parts AS T1",
        f"SELECT * FROM singer JOIN concert ON {ID}",
        f"SELECT singer.singer_id AS singer_id FROM singer JOIN concert ON {ID} ORDER BY singer_id",
        f"SELECT singer.singer_id AS i FROM singer JOIN concert ON {ID} GROUP BY i",
        "SELECT singer.singer_id AS singer_id FROM singer JOIN concert USING (singer_id) GROUP BY singer_id",
        "SELECT * FROM singer JOIN concert ON singer.singer_id = CAST(concert.singer_id AS INTEGER)",
        "SELECT * FROM singer JOIN concert ON CAST(concert.singer_id AS INTEGER) = singer.singer_id",
        f"SELECT * FROM singer {SELVES}",
        "SELECT * FROM singer WHERE Age = -1",
        "SELECT Name FROM singer WHERE Name LIKE 'A%' ESCAPE '\\'",
        "SELECT " + "abs(" * 6 + "1" + ")" * 6,
    ],
)
def test_what_is_right_beside_it_still_is(sql: str) -> None:
    assert refused_at(sql) == ""


def test_an_alias_that_is_owed_is_given_before_from_has_grown_long() -> None:
    """Guards against joins without end: the alias T9 was named, and no table of FROM would take it."""
    joins = [f"JOIN concert AS c{number} ON c{number}.singer_id = singer.singer_id" for number in range(1, 4)]
    four, five = (f"SELECT T9.Title FROM singer {SELVES} {' '.join(joins[:most])}" for most in (1, 2))
    last = "JOIN concert AS T9 ON T9.singer_id = singer.singer_id"
    assert refused_at(f"{four} {joins[1]} {last}") == refused_at(f"{five} {last}") == ""
    assert refused_at(f"{five} {joins[2]} {last}").startswith("c3")


def test_a_long_statement_neither_compares_in_parentheses_nor_breaks_lines() -> None:
    """Guards against texts that are cut: after their limit, nested casts were compared one after the other."""
    nested = "SELECT CAST(CAST(Name AS TEXT)"
    assert refused_at(f"{nested} = 1 AS TEXT) FROM singer") == ""
    assert refused_at(f"{nested} = 1 AS TEXT) FROM singer", long=6).startswith("= 1")
    assert refused_at(f"{nested} AS TEXT) FROM singer", long=6) == ""
    assert refused_at("SELECT Name\nFROM singer") == "" and refused_at("SELECT Name\nFROM singer", long=2) != ""
