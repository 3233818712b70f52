"""Guards against headings that become texts: each of fifty is one name from the prompt to the engine, on every engine.

`SELECT 'Net amount (EUR)'` gave a text instead of the column, and its sum was NULL.
"""

import csv
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa
from sqlglot import exp, parse_one

from agent.grammar.machine import LexState, beginning, feed
from agent.grammar.scope import catalog_of
from agent.grammar.words import is_plain, lowered
from agent.prompts.compact import name
from agent.prompts.slots import Plan, PlannedTable, parse_plan
from tests.tools.databases.server.servers import Server
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Result
from tools.schema import Schema
from tools.sql.from_sqlite import from_sqlite, in_sqlite, named_columns

HEADINGS = (
    "ratio (1:2)", "x => y", "Net amount (EUR)", "Net amount\n(€)", "Gross  amount", "Qty.", "% share", "#", "№ of items",
    "Order no.", "Price/unit", "Cost - total", "a.b", "a,b", "a;b", "a:b", "a|b", "a&b", "a+b=c", "a*b", "1st quarter",
    "2023", "3pointplay", "select", "from", "Group By", "order", "limit", "NULL", "it's", 'say "hi"', "`tick`", "[bracket]",
    "{brace}", "back\\slash", "question?", "bang!", "at@home", "tilde~", "caret^", "under_score", "-- dash", "/* star */",
    "größe", "Ελλάδα", "город", "城市", "☺ mood", "tab\there", "dollar $", "Temperature [°C]", "line\r\nend", "camelcase",
    "Very long heading with many words, up to sixty",
)  # fmt: skip
assert len(HEADINGS) == len(set(HEADINGS)) >= 50


def accepted(sql: str, dialect: str, schema: Schema) -> bool:
    reading: LexState | None = LexState(beginning(catalog_of(schema, dialect)))
    for character in lowered(sql):
        reading = feed(reading, character) if reading else None
    end = reading.settled() if reading else None
    return end is not None and end.complete


def sums(database: Database, write: Callable[[str, Schema], str], headings: Sequence[str] = HEADINGS) -> None:
    """Every heading: the prompt's spelling passes the grammar, and gives the column's sum."""
    schema = database.schema()
    for number, heading in enumerate(headings):
        shown = name(heading) if is_plain(heading, "sqlite") or name(heading) != heading else f'"{heading}"'  # select
        spelt = f"SELECT SUM({shown}) FROM sheet"
        assert "\n" not in spelt
        assert accepted(spelt, "sqlite", schema), spelt
        outcome = database.execute(write(spelt, schema))
        assert isinstance(outcome, Result), (heading, outcome)
        assert float(outcome.rows[0][0]) == 3 * number, heading


def make(execute: Callable[[str], object], quote: str, headings: Sequence[str] = HEADINGS) -> None:
    listed = ", ".join(f"{quote}{each.replace(quote, quote * 2)}{quote} INTEGER" for each in headings)
    execute(f"CREATE TABLE sheet ({listed})")
    for factor in (1, 2):
        execute(f"INSERT INTO sheet VALUES ({', '.join(str(factor * i) for i in range(len(headings)))})")


def test_sqlite(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as connection:
        make(connection.execute, '"')
        connection.commit()
    with closing(open_database(tmp_path / "s.sqlite", engine="sqlite")) as database:
        sums(database, in_sqlite)
    with closing(open_database(tmp_path / "s.sqlite")) as database:
        sums(database, lambda sql, schema: from_sqlite(sql, schema, exactly=False))


def test_duckdb(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        make(connection.execute, '"')
    with closing(open_database(tmp_path / "d.duckdb")) as database:
        sums(database, lambda sql, schema: from_sqlite(sql, schema, exactly=False))


@pytest.mark.parametrize(("kind", "quote"), [("postgresql", '"'), ("mariadb", "`")])
def test_servers(kind: str, quote: str, request: pytest.FixtureRequest) -> None:
    """SQLAlchemy reads MariaDB's columns from lines of SHOW CREATE TABLE: none with a line break, and backticks twice."""
    headings = [each for each in HEADINGS if kind == "postgresql" or not {"\n", "`"} & set(each)]
    assert len(headings) >= 50
    server: Server = request.getfixturevalue(kind)
    engine = sa.create_engine(server.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS sheet")
        make(lambda sql: connection.exec_driver_sql(sql.replace("%", "%%")), quote, headings)
    with closing(open_database(server.url)) as database:
        sums(
            database,
            lambda sql, schema: named_columns(parse_one(sql, dialect="sqlite"), schema).sql(database.dialect),
            headings,
        )
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE sheet")
    engine.dispose()


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_csv_file(tmp_path: Path, ending: str) -> None:
    """Spreadsheets end rows with CR and LF and lines within a cell with LF; DuckDB read no such file."""
    path = tmp_path / "sheet.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=ending).writerows(
            [HEADINGS, *([factor * i for i in range(len(HEADINGS))] for factor in (1, 2))]
        )
    with closing(open_database(path)) as database:
        sums(database, lambda sql, schema: from_sqlite(sql, schema, exactly=False))


def test_a_plan_names_every_heading() -> None:
    for heading in HEADINGS:
        plan = Plan((PlannedTable("sheet", (heading,)),), "SELECT _ FROM _")
        (table,) = parse_plan(plan.text()).tables
        assert table.columns == (" ".join(heading.split()),)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('SELECT "Net amount" FROM sale', '"Net amount (€)"'),
        ('SELECT "net amount (EUR)" FROM sale', '"Net amount (€)"'),
        ("SELECT SUM('Net amount (€)') FROM sale", '"Net amount (€)"'),
        ('SELECT AVG("Qty") FROM sale', '"Qty."'),
        ("SELECT 'Region / Area', COUNT(*) FROM sale GROUP BY 'Region / Area'", '"Region / Area"'),
    ],
)
def test_nearly_the_name_is_the_name(tmp_path: Path, written: str, meant: str) -> None:
    """Wrong sums of NULL, and a text in every row, came of these."""
    path = tmp_path / "sale.csv"
    path.write_text(
        "Order No.;Order date;Net amount (€);Qty.;Region / Area\nA-1;03.01.2023;1,50;3;North\nA-2;05.01.2023;2,50;1;South\n"
    )
    with closing(open_database(path)) as database:
        sql = from_sqlite(written, database.schema(), exactly=False)
        assert meant in sql and isinstance(database.execute(sql), Result)


def test_a_value_stays_a_value(tmp_path: Path) -> None:
    path = tmp_path / "sale.csv"
    path.write_text("town,north (kg),region\nBern,1,North\nChur,2,South\n")
    with closing(open_database(path)) as database:
        sql = from_sqlite('SELECT COUNT(*) FROM sale WHERE region = "North"', database.schema(), exactly=False)
        assert sql == "SELECT COUNT(*) FROM sale WHERE region = 'North'"
        assert parse_one(sql, dialect="duckdb").find(exp.Literal) is not None
