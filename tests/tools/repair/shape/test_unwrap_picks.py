"""ANY_VALUE goes where it makes one row of all, and stays where a group or a count needs it."""

import pytest

from tools.databases.open_database import open_database
from tools.repair.repair_query import repair_query
from tools.repair.shape.unwrap_picks import unwrap_picks
from tools.result import DEFAULT_LIMITS
from tools.schema import Schema

SCHEMA = Schema((), "duckdb")


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        ("SELECT ANY_VALUE(name) FROM store", "SELECT name FROM store"),
        ("SELECT any_value(name), ANY_VALUE(area) FROM store", "SELECT name, area FROM store"),
        ("SELECT name FROM store ORDER BY ANY_VALUE(area)", "SELECT name FROM store ORDER BY area"),
        (
            "SELECT COUNT(*) FROM (SELECT ANY_VALUE(name) FROM store) AS s",
            "SELECT COUNT(*) FROM (SELECT name FROM store) AS s",
        ),
    ],
)
def test_a_pick_from_all_rows_goes(sql: str, then: str) -> None:
    assert unwrap_picks(sql, SCHEMA) == then
    assert unwrap_picks(then, SCHEMA) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ANY_VALUE(name) FROM store GROUP BY city",
        "SELECT ANY_VALUE(name), MAX(area) FROM store",
        "SELECT ANY_VALUE(name) FROM store ORDER BY COUNT(*)",
        "SELECT ANY_VALUE(name) FROM store HAVING COUNT(*) > 1",
        "SELECT name FROM store",
        "SELECT ANY_VALUE( FROM",
    ],
)
def test_where_groups_or_other_aggregates_need_it_it_stays(sql: str) -> None:
    assert unwrap_picks(sql, SCHEMA) is None


def test_it_is_one_of_the_mends(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("shop") / "store.csv"
    file.write_text("name,area\nLyon,10\nParis,20\n")
    database = open_database(str(file))
    sql = "SELECT ANY_VALUE(name) FROM store ORDER BY ANY_VALUE(area) DESC"
    try:
        assert repair_query(sql, database, [], DEFAULT_LIMITS, mends=("picks",))[0].endswith("ORDER BY area DESC")
        assert repair_query(sql, database, [], DEFAULT_LIMITS)[0] == sql
    finally:
        database.close()
