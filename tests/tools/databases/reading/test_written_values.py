"""Guards how numbers and dates that people wrote are read: by one form for a whole column, or not at all."""

from datetime import date
from pathlib import Path

import duckdb
import pytest

from tools.databases.files.written_values import Finding, convert, findings


def converted(decimal: str = ".", **columns: list[str | None]) -> tuple[dict[str, list[object]], dict[str, Finding]]:
    """The columns afterwards, and what was found."""
    with duckdb.connect() as connection:
        listed = ", ".join(f"unnest(?) AS {name}" for name in columns)
        connection.execute(f"CREATE TABLE t AS SELECT {listed}", list(columns.values()))
        found = findings(connection, "t", list(columns), decimal)
        convert(connection, "t", found)
        rows = connection.execute("FROM t").fetchall()
    return {name: [row[i] for row in rows] for i, name in enumerate(columns)}, {each.column: each for each in found}


@pytest.mark.parametrize(
    ("written", "read", "note"),
    [
        (["1.234,50", "2,5", "-3"], [1234.5, 2.5, -3.0], "decimal comma"),
        (["62,176", "1,200", "3"], [62176, 1200, 3], ""),
        (["$1,200.50", "$3", "($4.20)"], [1200.5, 3.0, -4.2], "in $"),
        (["12 %", "5%", "n/a"], [12, 5, None], "in percent; 1 mark for nothing left empty"),
        (["1 234,50 €", "12,00 €", "-0,5 €"], [1234.5, 12.0, -0.5], "in €; decimal comma"),
        (["1\u202f234", "12", "7"], [1234, 12, 7], ""),
        (["1'234.50", "2'000", "7"], [1234.5, 2000.0, 7.0], ""),
        (["EUR 3", "4 EUR", "−5 EUR"], [3, 4, -5], "in EUR"),
        (["99999999999999999999 €", "1 €", "2 €"], [99999999999999999999, 1, 2], "in €"),
        (["13.02.2023", "01.02.2023", "-"], [date(2023, 2, 13), date(2023, 2, 1), None],
         "written day.month.year; 1 mark for nothing left empty"),
        (["2/13/2023", "1/2/2023"], [date(2023, 2, 13), date(2023, 1, 2)], "written month/day/year"),
        (["01/02/2023", "03/04/2023"], [date(2023, 2, 1), date(2023, 4, 3)],
         "written day/month/year; month and day could be the other way round"),
        (["Jan 5, 2020", "Feb 7, 2021"], [date(2020, 1, 5), date(2021, 2, 7)], "written month day, year"),
    ],
)  # fmt: skip
def test_one_form_fits_the_column(written: list[str | None], read: list[object], note: str) -> None:
    rows, found = converted(c=written)
    assert rows["c"] == read
    assert found["c"].note == note


@pytest.mark.parametrize(
    ("written", "note"),
    [
        (["1,5", "2,5", "3", "4", "soon", "later", "?!"], "text, for 3 of 7 values are not numbers, such as “?!”"),
        (["1,5", "x", "2,5"], "text, for 1 of 3 values is no number, such as “x”"),
        (["$1", "€2", "3"], "text, for its values have different units: $, €, no sign"),
        (["5 %", "0.05"], "text, for its values have different units: %, no sign"),
        (["13.02.2023", "14.02.2023", "yesterday"], "text, for 1 of 3 values is no date"),
        (["00123", "01234", "99999"], ""),
        (["555 123 456", "030 111", "49 151"], ""),
        (["1.2.3", "10.0.1"], ""),
        (["May", "June"], ""),
        ([None, "", "-"], ""),
    ],
)
def test_what_does_not_fit_stays_as_it_is(written: list[str | None], note: str) -> None:
    rows, found = converted(c=written)
    assert rows["c"] == written
    assert found["c"].note == note


def test_another_column_settles_what_a_comma_means() -> None:
    rows, _ = converted(doubtful=["1,234", "5,678"], sure=["0,5", "12,25"])
    assert rows["doubtful"] == [1.234, 5.678]
    rows, _ = converted(",", doubtful=["1,234", "5,678"], sure=["0.5", "12.25"])
    assert rows["doubtful"] == [1234, 5678]


def test_the_unit_is_told_to_whoever_reads_the_schema(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT unnest(['3 €', '4 €']) AS \"the price\"")
        convert(connection, "t", findings(connection, "t", ["the price"], "."))
        told = connection.execute("SELECT comment FROM duckdb_columns() WHERE table_name = 't'").fetchall()
    assert told == [("in €",)]
