"""A comparison with NULL becomes a test for it, in conditions alone."""

from contextlib import closing

import pytest

from tools.databases.open_database import open_database
from tools.repair.literals.compare_nulls import compare_nulls
from tools.repair.repair_query import repair_query
from tools.result import DEFAULT_LIMITS
from tools.schema import Schema

SCHEMA = Schema((), "duckdb")


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        ("SELECT a FROM t WHERE b = NULL", "SELECT a FROM t WHERE b IS NULL"),
        ("SELECT a FROM t WHERE t.b = t.b", "SELECT a FROM t WHERE NOT t.b IS NULL"),
        ('SELECT a FROM t WHERE b = "B"', "SELECT a FROM t WHERE NOT b IS NULL"),
        ("SELECT a FROM t WHERE b != NULL AND c = 1", "SELECT a FROM t WHERE NOT b IS NULL AND c = 1"),
        ("SELECT a FROM t GROUP BY a HAVING MAX(b) = NULL", "SELECT a FROM t GROUP BY a HAVING MAX(b) IS NULL"),
        (
            "SELECT a FROM t WHERE a IN (SELECT a FROM s WHERE NULL = b)",
            "SELECT a FROM t WHERE a IN (SELECT a FROM s WHERE b IS NULL)",
        ),
    ],
)
def test_null_is_tested_for(sql: str, then: str) -> None:
    assert compare_nulls(sql, SCHEMA) == then
    assert compare_nulls(then, SCHEMA) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a = NULL FROM t",
        "SELECT a FROM t WHERE b = 'NULL'",
        "SELECT a FROM t WHERE",
        "SELECT NULL",
        "SELECT a FROM t WHERE t.b = s.b",
        "SELECT a FROM t WHERE b <> b",
        "SELECT a FROM t WHERE 1 = 1",
    ],
)
def test_other_statements_stay(sql: str) -> None:
    assert compare_nulls(sql, SCHEMA) is None


def test_the_repair_finds_the_empty_rows(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("shop") / "store.csv"
    file.write_text("name,area\nLyon,10\nParis,\n")
    with closing(open_database(str(file))) as database:
        sql, error = repair_query("SELECT name FROM store WHERE area = NULL", database, [], DEFAULT_LIMITS)
        assert error is None and database.execute(sql).rows == (("Paris",),)
