"""What is asked for is added up where a column holds its number, and rows are counted everywhere else."""

from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

from tools.databases.open_database import open_database
from tools.repair.columns.sum_counted import sum_counted
from tools.repair.repair_query import repair_query
from tools.result import Limits
from tools.schema import Column, Schema, Table

ROOM = Table("room", (Column("Beds", "INTEGER"), Column("decor", "TEXT"), Column("hotel", "TEXT")))
SCHEMA = Schema((ROOM, Table("hotel", (Column("id", "TEXT"), Column("stars", "INTEGER")))), "sqlite")
QUESTION = "How many beds are there?"


@pytest.mark.parametrize(
    ("sql", "then"),
    [
        ("SELECT COUNT(*) FROM room", "SELECT SUM(Beds) FROM room"),
        ("SELECT COUNT(decor) FROM room WHERE decor = 'old'", "SELECT SUM(Beds) FROM room WHERE decor = 'old'"),
        (
            "SELECT COUNT(*) FROM room AS r JOIN hotel ON r.hotel = hotel.id",
            "SELECT SUM(r.Beds) FROM room AS r JOIN hotel ON r.hotel = hotel.id",
        ),
    ],
)
def test_the_column_is_added_up(sql: str, then: str) -> None:
    assert sum_counted(sql, SCHEMA, QUESTION) == then
    assert sum_counted(then, SCHEMA, QUESTION) is None


@pytest.mark.parametrize(
    ("sql", "question"),
    [
        ("SELECT COUNT(*) FROM room", "How many rooms are there?"),
        ("SELECT COUNT(*) FROM hotel", QUESTION),  # without the table that has beds
        ("SELECT COUNT(*) FROM room WHERE Beds > 1", QUESTION),  # the beds have been used
        ("SELECT decor, COUNT(*) FROM room GROUP BY decor", QUESTION),
        ("SELECT COUNT(*), COUNT(decor) FROM room", QUESTION),
        ("SELECT decor FROM room ORDER BY COUNT(*)", QUESTION),
        ("SELECT COUNT(*) FROM room, hotel", "How many beds and what number of stars?"),
    ],
)
def test_rows_are_counted(sql: str, question: str) -> None:
    assert sum_counted(sql, SCHEMA, question) is None


def test_the_most_of_a_column_is_a_sum() -> None:
    question = "Which decor has the most beds?"
    sql = "SELECT decor FROM room GROUP BY decor ORDER BY COUNT(*) DESC LIMIT 1"
    then = "SELECT decor FROM room GROUP BY decor ORDER BY SUM(Beds) DESC LIMIT 1"
    assert sum_counted(sql, SCHEMA, question) == then
    assert sum_counted(sql, SCHEMA, "Which decor has the most rooms?") is None
    assert sum_counted("SELECT decor FROM room ORDER BY COUNT(*) DESC LIMIT 1", SCHEMA, question) is None
    alike = Schema((*SCHEMA.tables, Table("offer", (Column("extra_bed", "INTEGER"),))), "sqlite")
    assert sum_counted(sql, alike, question) is None  # which beds?


def test_the_new_rules_are_mends(tmp_path: Path) -> None:
    """Guards against a rule that its name does not switch on."""
    with connect(tmp_path / "rooms.sqlite") as made:
        made.execute("CREATE TABLE room (beds INTEGER, decor TEXT)")
    with closing(open_database(tmp_path / "rooms.sqlite", engine="sqlite")) as database:
        for mend, sql, question, then in (
            ("counted", "SELECT COUNT(*) FROM room", QUESTION, "SELECT SUM(beds) FROM room"),
            ("bounds", "SELECT decor FROM room WHERE beds = 2", "Rooms with 2 or more beds", ">= 2"),
            ("rows", "SELECT decor FROM room", "How many rooms?", "SELECT COUNT(*) FROM room"),
            ("absent", "SELECT beds FROM room", "Rooms without a decor", "SELECT beds FROM room WHERE decor IS NULL"),
            ("wildcards", "SELECT beds FROM room WHERE decor LIKE 'a'", "Decors that start with a", "'a%'"),
            ("alphabetical", "SELECT decor FROM room ORDER BY beds", "Decors alphabetically", "ORDER BY decor"),
            (
                "extremes",
                "SELECT beds FROM room ORDER BY beds LIMIT 1",
                "Highest and lowest number?",
                "SELECT MAX(beds), MIN(beds) FROM room",
            ),
            ("listed", "SELECT decor FROM room", "List the decor and beds of rooms.", "SELECT decor, beds FROM room"),
        ):
            assert repair_query(sql, database, (), Limits(), question)[0] == sql
            assert repair_query(sql, database, (), Limits(), question, (mend,))[0].endswith(then)
