"""Periods of a question: "last month" became `ILIKE 'Last month'`, and "between 2025-01-01 and ..." became 2025 - 01 - 01."""

from datetime import date

import pytest

from tools.linking.link_schema import link
from tools.linking.mentions import with_plain_numbers
from tools.linking.periods import period_definitions, periods
from tools.linking.taught import expanded
from tools.schema import Column, Schema, Table

TODAY = date(2026, 11, 28)


@pytest.mark.parametrize(
    ("phrase", "days"),
    [
        ("today", "on 2026-11-28"),
        ("yesterday", "on 2026-11-27"),
        ("this week", "from 2026-11-23 to 2026-11-29"),
        ("last week", "from 2026-11-16 to 2026-11-22"),
        ("this month", "from 2026-11-01 to 2026-11-30"),
        ("last month", "from 2026-10-01 to 2026-10-31"),
        ("this year", "from 2026-01-01 to 2026-12-31"),
        ("last year", "from 2025-01-01 to 2025-12-31"),
        ("in the last 7 days", "from 2026-11-22 to 2026-11-28"),
        ("in the past 90 days", "from 2026-08-31 to 2026-11-28"),
        ("in the last 3 months", "from 2026-08-29 to 2026-11-28"),
        ("in the last two years", "from 2024-11-29 to 2026-11-28"),
        ("this quarter", "from 2026-10-01 to 2026-12-31"),
        ("last quarter", "from 2026-07-01 to 2026-09-30"),
        ("year to date", "from 2026-01-01 to 2026-11-28"),
        ("YTD", "from 2026-01-01 to 2026-11-28"),
        ("3 weeks ago", "on 2026-11-07"),
        ("between 2025-01-01 and 2025-12-31", "from 2025-01-01 to 2025-12-31"),
        ("from 1 May 2024 to May 31, 2024", "from 2024-05-01 to 2024-05-31"),
        ("after March 1, 2024", "from 2024-03-02"),
        ("before 01.03.2024", "until 2024-02-29"),
        ("since March 2024", "from 2024-03-01"),
        ("until 2nd of May 2024", "until 2024-05-02"),
        ("in Feb 2024", "from 2024-02-01 to 2024-02-29"),
        ("on 3/14/2024", "on 2024-03-14"),
        ("on 3/4/2024", ""),
        ("on 2024-02-30", ""),
        ("in 2024", ""),
        ("in the lasting days", ""),
    ],
)
def test_days(phrase: str, days: str) -> None:
    assert [found.days() for found in periods(f"How many visits were there {phrase}?", TODAY)] == (
        [days] if days else []
    )


def test_ends_of_months() -> None:
    assert [found.days() for found in periods("last month", date(2026, 1, 31))] == ["from 2025-12-01 to 2025-12-31"]
    assert [found.days() for found in periods("last 3 months", date(2026, 5, 31))] == ["from 2026-03-01 to 2026-05-31"]
    assert [found.days() for found in periods("last 1 year", date(2024, 2, 29))] == ["from 2023-03-01 to 2024-02-29"]


PEOPLE = Table(
    "people", (Column("name", "TEXT"), Column("born_on", "DATE"), Column("left", "INTEGER", samples=("2019", "2021")))
)
ORDERS = Table(
    "orders",
    (Column("ordered", "TEXT", samples=("2024-01-05 10:00",)), Column("shipped", "TIMESTAMP"), Column("at", "TIME")),
)


def conditions(question: str, *tables: Table) -> list[str]:
    schema = Schema(tables, "sqlite")
    return [each.formula.sql() for each in period_definitions(schema, question, link(schema, question), TODAY)]


def test_the_column_that_is_meant() -> None:
    """The one that the question names; no time of day, and no day of birth."""
    assert conditions("orders shipped yesterday", PEOPLE, ORDERS) == [
        '"orders"."shipped" >= \'2026-11-27\' AND "orders"."shipped" < \'2026-11-28\''
    ]
    assert conditions("What was ordered before 2024-03-01?", ORDERS) == ['"orders"."ordered" < \'2024-03-01\'']
    assert conditions("Who left last year?", PEOPLE) == ['"people"."left" >= 2025 AND "people"."left" < 2026']
    assert conditions("Who left last month?", PEOPLE) == []


def test_the_last_day_is_in_the_period() -> None:
    schema = Schema((ORDERS,), "sqlite")
    (found,) = period_definitions(schema, "ordered last month", (), TODAY)
    sql = expanded("SELECT COUNT(*) FROM orders WHERE period = 'last month'", [found], schema)
    assert sql.endswith("WHERE (orders.ordered >= '2026-10-01' AND orders.ordered < '2026-11-01')")
    assert found.told == "Here “last month” means: ordered from 2026-10-01 to 2026-10-31."


def test_numbers_as_people_write_them() -> None:
    said = "more than 1.5k, 2 million, 3M or 1,200 thousand, but 5 m, 5m and 3 k stay"
    assert with_plain_numbers(said) == "more than 1500, 2000000, 3000000 or 1200000, but 5 m, 5m and 3 k stay"
