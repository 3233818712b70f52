"""Guards descriptions of SQL in words, and questions made from a schema."""

import pytest

from tools.linking.questions import starters
from tools.schema import Column, ForeignKey, Schema, Table
from tools.sql.spelling import in_words


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("SELECT COUNT(*) FROM albums", ["the number of rows from albums"]),
        ("SELECT DISTINCT a, b FROM t WHERE a > 3", ["different a and b from t", "Only rows where a > 3"]),
        ("SELECT a, AVG(b) FROM t GROUP BY a HAVING AVG(b) > 2", ["the average of b", "each a", "Only groups where"]),
        ("SELECT a FROM t JOIN u ON t.i = u.i ORDER BY a DESC LIMIT 3",
         ["t and u (matched where t.i = u.i)", "a, largest first", "At most 3 rows"]),
        ("SELECT COUNT(DISTINCT a) FROM t UNION SELECT 1", ["the number of different a", "Together with this:"]),
        ("SELECT ANY_VALUE(a) FROM t GROUP BY b ORDER BY ANY_VALUE(c) LIMIT 1",
         ["Takes a from t.", "Sorted by c, smallest first. Only the first row."]),
        ("SELECT * FROM (SELECT a FROM t)", ["all columns from a query of its own"]),
    ],
)  # fmt: skip
def test_a_query_is_told_in_words(sql: str, parts: list[str]) -> None:
    told = in_words(sql, "duckdb")
    for part in parts:
        assert part in told


@pytest.mark.parametrize("sql", ["", "not sql at all ((", "SELECT " + "(" * 2000])
def test_what_cannot_be_read_is_not_told(sql: str) -> None:
    assert in_words(sql, "duckdb") == ""


def test_starters_speak_of_the_tables_that_there_are() -> None:
    artists = Table(
        "artists", (Column("artist_id", "INTEGER", True), Column("country", "VARCHAR", samples=("France",)))
    )
    columns = (Column("album_id", "INTEGER", True), Column("artist_id", "INTEGER"), Column("title", "VARCHAR"),
               Column("listPrice", "DECIMAL(8,2)"))  # fmt: skip
    albums = Table("albums", columns, (ForeignKey(("artist_id",), "artists", ("artist_id",)),))
    asked = starters(Schema((artists, albums), "duckdb"), 6)
    assert len(asked) == len(set(asked)) >= 4
    assert "How many artists are there for each country?" in asked
    assert "What is the average list price of the albums?" in asked
    assert not any("artist id" in question for question in asked)
    assert starters(Schema((), "duckdb")) == []


def test_first_questions_are_english_whatever_a_table_is_called() -> None:
    """One's own files were asked "How many employee are there?" and "for each manager??"."""
    who = (Column("Manager?", "TEXT", samples=("Ada", "Bo")), Column("id", "INTEGER", primary_key=True))
    asked = starters(Schema((Table("Employee", who),), "duckdb"))
    assert asked == ["How many rows of employee are there?", "How many rows of employee are there for each manager?"]


def test_a_group_by_place_is_told_by_its_column() -> None:
    """ "One row for each 1." stood under GROUP BY 1."""
    assert "One row for each country." in in_words("SELECT country AS c, count(*) FROM artists GROUP BY 1", "duckdb")
