"""Numbers are converted where question and column name units of one dimension; everything else stays."""

import pytest

from tools.repair.literals.convert_units import convert_units
from tools.schema import Column, Schema, Table

TRACK = Table(
    "track",
    (
        Column("duration_seconds", "INTEGER"),
        Column("Milliseconds", "INTEGER"),
        Column("height_cm", "REAL"),
        Column("size", "INTEGER", comment="in bytes"),
        Column("m", "INTEGER"),
        Column("plays", "INTEGER"),
    ),
)
SCHEMA = Schema((TRACK,), "duckdb")


@pytest.mark.parametrize(
    ("condition", "question", "then"),
    [
        ("duration_seconds < 3", "Tracks under 3 minutes", "duration_seconds < 180"),
        ("duration_seconds < 3", "Tracks under three minutes", "duration_seconds < 180"),
        ("duration_seconds >= 1.5", "Tracks of 1.5 hours or more", "duration_seconds >= 5400"),
        ("duration_seconds BETWEEN 2 AND 3", "Between 2 minutes and 3 minutes", "duration_seconds BETWEEN 120 AND 180"),
        ("Milliseconds > 10", "Longer than 10 seconds", "Milliseconds > 10000"),
        ("height_cm > 2", "Higher than 2 m", "height_cm > 200"),
        ("height_cm > 15", "Higher than 15 mm", "height_cm > 1.5"),
        ("size > 2000", "Bigger than 2,000 kb", "size > 2000000"),
        ("plays > 5 AND duration_seconds > 5", "5 plays and over 5 minutes", "plays > 5 AND duration_seconds > 300"),
    ],
)
def test_numbers_in_other_units_are_converted(condition: str, question: str, then: str) -> None:
    assert convert_units(f"SELECT * FROM track WHERE {condition}", SCHEMA, question) == (
        f"SELECT * FROM track WHERE {then}"
    )


@pytest.mark.parametrize(
    ("condition", "question"),
    [
        ("duration_seconds < 180", "Tracks under 3 minutes"),  # converted already
        ("duration_seconds < 3", "Tracks under 3 seconds"),
        ("duration_seconds < 3", "Tracks with 3 plays"),
        ("duration_seconds < 3", "Over 3 minutes, or 3 hours"),  # which?
        ("height_cm < 3", "Under 3 minutes"),  # another dimension
        ("m < 3", "Under 3 km"),  # a name, not a unit
        ("plays < 3", "Under 3 minutes"),
        ("duration_seconds < '3'", "Under 3 minutes"),
        ("duration_seconds <", "Under 3 minutes"),  # no statement
    ],
)
def test_what_is_not_certain_stays(condition: str, question: str) -> None:
    assert convert_units(f"SELECT * FROM track WHERE {condition}", SCHEMA, question) is None


def test_aggregates_keep_the_unit() -> None:
    sql = "SELECT COUNT(*) FROM track HAVING AVG(duration_seconds) > 2 AND COUNT(plays) > 2"
    assert convert_units(sql, SCHEMA, "more than 2 minutes on average") == sql.replace("seconds) > 2", "seconds) > 120")
