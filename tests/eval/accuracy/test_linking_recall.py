"""What a budget loses is counted right."""

from pathlib import Path

from eval.accuracy.harness import Case, Row, measure, needed
from tools.databases.open_database import open_database
from tools.linking.link_schema import Link, link
from tools.schema import Schema

GOLD = "SELECT T2.title FROM author AS T1 JOIN book AS T2 ON T1.author_id = T2.author_id WHERE T1.NAME = 'Bo Lind'"
NEEDED = frozenset({("book", "title"), ("author", "author_id"), ("book", "author_id"), ("author", "name")})

NO_HINTS = (0.0, 1.0, 0.0)  # hinted, precision, recall


def _schema(invented: Path) -> Schema:
    database = open_database(invented / "database" / "library" / "library.sqlite", engine="sqlite")
    try:
        return database.schema()
    finally:
        database.close()


def test_what_a_query_needs_is_named_as_the_schema_does(invented: Path) -> None:
    """Guards aliases, case, and tables of which no column is named."""
    assert needed(GOLD, _schema(invented)) == (frozenset({"author", "book"}), NEEDED)
    assert needed("SELECT count(*) FROM Loan", _schema(invented)) == (frozenset({"loan"}), frozenset())


def test_lost_tables_lower_the_recall(invented: Path) -> None:
    """Guards the three counts on a case that keeps all it needs, and one that is cut to the wrong table."""
    schema = _schema(invented)
    right = link(schema, "Which books has the author Bo Lind?")
    wrong, half = (Link("member", None, 1.0),), (Link("author", None, 1.0),)
    cases = [Case(schema, links, frozenset({"author", "book"}), NEEDED, NEEDED) for links in (right, wrong)]
    assert measure("x", cases, 200) == Row("x", 2, 200, 0, 1.0, 1.0, 0, *NO_HINTS)
    assert measure("x", cases[:1], 12) == Row("x", 1, 12, 1, 1.0, 1.0, 0, *NO_HINTS)
    assert measure("x", cases, 12) == Row("x", 2, 12, 2, 0.5, 0.5, 1, *NO_HINTS)
    partly = Case(schema, half, frozenset({"author", "book"}), NEEDED, NEEDED)
    assert measure("x", [partly], 8) == Row("x", 1, 8, 1, 0.5, 0.5, 1, *NO_HINTS)


def test_hints_are_judged_by_the_columns_of_the_plan(invented: Path) -> None:
    """A right hint, a wrong one, and a key whose score is too low to be hinted."""
    links = (Link("book", "title", 1.3), Link("author", "author_id", 1.1), Link("member", "name", 0.9))
    row = measure("x", [Case(_schema(invented), links, frozenset({"author", "book"}), NEEDED, NEEDED)], 200)
    assert (row.hinted, row.hint_precision, row.hint_recall) == (2.0, 0.5, 0.25)
