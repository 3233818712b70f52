"""Functions of dates take columns that hold dates, as these are spelled, and no difference is one of a column and itself.

Guards against `STRFTIME('%Y-%m', opened) = '2024'`, which is never true, against `STRFTIME('%Y-%m', amount, amount)`,
which a small model wrote for "amount per month", against seconds since 1970 that are read as days, and against
`closed - closed`.
"""

import sqlite3

import pytest

from agent.grammar.facts import facts_of
from agent.grammar.scope import catalog_of
from tests.agent.grammar.heroes import accepted
from tools.linking.mentions import QuestionContext
from tools.schema import Column, Schema, Table


def jobs(*columns: Column) -> Schema:
    return Schema((Table("jobs", (Column("id", "INTEGER", primary_key=True), *columns)),), "sqlite")


SCHEMA = jobs(
    Column("opened", "TEXT", samples=("2024-03-05 10:00", "2024-03-06 11:30")),
    Column("closed", "TIMESTAMP"),
    Column("queued", "INTEGER", samples=("1709632800", "1709719200")),
    Column("sent", "INTEGER", samples=("1709632800123",)),
    Column("billed", "TEXT", samples=("05.03.2024",)),
    Column("year", "INTEGER", samples=("2024",)),
    Column("price", "REAL", samples=("12.5",)),
    Column("state", "TEXT", samples=("done", "open")),
)
GOOD = [
    "select strftime('%y-%m', opened), count(*) from jobs group by strftime('%y-%m', opened)",
    "select strftime('%y', jobs.closed) from jobs",
    "select avg(julianday(closed) - julianday(opened)) * 24 from jobs",
    "select strftime('%h', queued, 'unixepoch') from jobs",
    "select date(sent / 1000, 'unixepoch') from jobs",
    "select datetime(max(queued), 'unixepoch'), date(max(opened)) from jobs",
    "select strftime('%w', substr(billed, 7, 4) || '-' || substr(billed, 4, 2) || '-' || substr(billed, 1, 2)) from jobs",
    "select state from jobs where opened >= date('now', '-30 days')",
    "select state from jobs where julianday('2024-12-31') - julianday(opened) > 7",
    "select date(opened, 'start of month'), date(opened, '+7 days') from jobs",
    "select price * price, price + price, max(price) - min(price), price - avg(price) over () from jobs",
    "select sum(case when state = 'done' then price else 0 end) / sum(price) from jobs",
    "select a.price - b.price from jobs as a join jobs as b on a.year = b.year",
    "select state from jobs where strftime('%y-%m', opened) = '2024-03' and date(opened) < '2024-05-01'",
    "select state from jobs where strftime('%y', opened) between '2019' and '2021'",
    "select state from jobs where strftime('%m', opened) in ('01', '12') or strftime('%h:%m', opened) > '18:45'",
    "select state from jobs where strftime('%y', opened) = (select max(strftime('%y', closed)) from jobs)",
    "select state from jobs where cast(strftime('%y', opened) as integer) > 2019 and strftime('%y', opened) = '2024'",
    "select state from jobs where strftime('%y', opened) like '202%'",
]
BAD = {
    "select strftime('%y-%m', price) from jobs": "an amount is no date",
    "select strftime('%y', year) from jobs": "a year would be read as a day",
    "select strftime('%y', jobs.state) from jobs": "words are no date",
    "select strftime('%y', id) from jobs": "nor are numbers of rows",
    "select strftime('%y-%m', opened, opened) from jobs": "nothing but a modifier follows",
    "select strftime('opened', opened) from jobs": "what is no format",
    "select strftime('%h', queued) from jobs": "seconds would be read as days",
    "select strftime('%h', opened, 'unixepoch') from jobs": "a text would be read as seconds",
    "select date(sent, 'unixepoch') from jobs": "milliseconds would be read as seconds",
    "select date(max(queued)) from jobs": "seconds within a function",
    "select date(billed) from jobs": "a spelling that the engine does not read",
    "select avg(julianday(opened) - julianday(opened)) from jobs": "a difference that is always 0",
    "select julianday(unicode(opened)) from jobs": "what is no date any more",
    "select price - price from jobs": "a difference that is always 0",
    "select queued - id from jobs": "a difference of a time and the number of a row",
    "select price / jobs.state from jobs": "a ratio of an amount and a word",
    "select jobs.price / jobs.price from jobs": "a ratio that is always 1",
    "select state from jobs where strftime('%y-%m', opened) = '2024'": "a month is no year",
    "select state from jobs where strftime('%y', opened) >= '2024-03-01'": "a year is no day",
    "select state from jobs where strftime('%y-%m', opened) in ('2024-13')": "there is no such month",
    "select state from jobs where strftime('%y', opened) = 2024": "a text is never equal to a number",
    "select state from jobs where date(opened) = '2024'": "a day is no year",
    "select count(*) from jobs group by state having min(price) > 1 and strftime('%m', opened) = '3'": "months have two digits",
}


def allowed(sql: str, schema: Schema = SCHEMA) -> bool:
    question = QuestionContext("Jobs 7 days after '2024', by month")
    return accepted(sql, catalog_of(schema, "sqlite", facts_of(schema, question)))


@pytest.mark.parametrize("sql", GOOD)
def test_what_is_read_as_a_date(sql: str) -> None:
    assert allowed(sql)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE jobs (id, opened, closed, queued, sent, billed, year, price, state)")
    database.execute(sql)


@pytest.mark.parametrize("sql", BAD, ids=list(BAD.values()))
def test_what_is_not(sql: str) -> None:
    assert not allowed(sql)
    assert accepted(sql, catalog_of(SCHEMA, "sqlite")), "without facts nothing is known of what columns hold"


def test_where_no_column_holds_dates_no_function_of_dates_is_offered() -> None:
    schema = jobs(Column("price", "REAL", samples=("12.5",)), Column("state", "TEXT", samples=("done",)))
    assert not allowed("select strftime('%y', state) from jobs", schema)
    assert not allowed("select julianday('now') from jobs", schema)
    assert allowed("select round(price, 1) from jobs", schema)
