"""Guards spreadsheets as people keep them: every sum is right, or what was not read is said. Ten invented workbooks, and more.

Each fault here gave a wrong number without a word: totals that doubled sums, upper headings and first tables that were dropped,
formulas without values that were empty, codes that lost their zeros.
"""

import datetime
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter

from tools.databases.open_database import open_database
from tools.result import Result

DAY = datetime.date
Cells = Sequence[Sequence[Any]]


def book(path: Path, sheets: Mapping[str, Cells], merged: Sequence[str] = (), formats: Mapping[str, str] = {}) -> Path:
    """A workbook. Cells beginning with = are formulas without a value; `formats` by column's letter."""
    with xlsxwriter.Workbook(str(path), {"default_date_format": "dd.mm.yyyy"}) as workbook:
        for name, rows in sheets.items():
            sheet = workbook.add_worksheet(name)
            for letter, form in formats.items():
                sheet.set_column(f"{letter}:{letter}", None, workbook.add_format({"num_format": form}))
            for row, cells in enumerate(rows):
                for column, cell in enumerate(cells):
                    write(workbook, sheet, row, column, cell, formats)
            for place in merged:
                sheet.merge_range(place, sheets[name][int(place[1]) - 1][ord(place[0]) - ord("A")])
    return path


def write(workbook: Any, sheet: Any, row: int, column: int, cell: Any, formats: Mapping[str, str]) -> None:
    form = formats.get(chr(ord("A") + column))
    if isinstance(cell, str) and cell.startswith("="):
        sheet.write_formula(row, column, cell, None, "")
    elif isinstance(cell, str):
        sheet.write_string(row, column, cell)
    elif cell is not None:
        sheet.write(row, column, cell, workbook.add_format({"num_format": form}) if form else None)


def told(path: Path, *queries: str) -> tuple[list[list[tuple[Any, ...]]], str, dict[str, dict[str, str]]]:
    """The rows of queries, what was said when the file was opened, and the types of the tables' columns."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        database = open_database(path)
    with closing(database):
        answers = []
        for query in queries:
            outcome = database.execute(query)
            assert isinstance(outcome, Result), (query, outcome)
            answers.append(list(outcome.rows))
        types = {table.name: {each.name: each.type for each in table.columns} for table in database.schema().tables}
    return answers, "\n".join(str(each.message) for each in noted), types


def test_a_report_with_titles_commas_units_and_a_total(tmp_path: Path) -> None:
    """Amounts as text with decimal commas next to "3 Stk" and NA: the total was kept in silence, and doubled every sum."""
    rows = [
        ["Umsatz 2023"], [], ["Datum", "Kunde", "Netto\n(EUR)", "Menge"], ["03.01.2023", "Abt", "1.234,50", "3 Stk"],
        ["14.01.2023", "Bock", "80,00", "12 Stk"], ["02.02.2023", "Abt", "NA", "1 Stk"], ["Summe", None, "1.314,50", "16 Stk"],
    ]  # fmt: skip
    path = book(tmp_path / "umsatz.xlsx", {"Tabelle1": rows})
    query = 'SELECT sum("Netto (EUR)"), sum(Menge), count(*), min(Datum) FROM umsatz'
    ([(netto, pieces, count, first)],), said, types = told(path, query)
    assert (netto, pieces, count, first) == (1314.5, 16, 3, DAY(2023, 1, 3))
    assert "“Summe”, adds up those above it, and is left out" in said
    assert types["umsatz"]["Datum"] == "DATE"


def test_a_total_beside_cells_that_cannot_be_read(tmp_path: Path) -> None:
    rows = [
        ["item", "price", "pieces"], ["pen", 2.5, "4"], ["ink", "soon", "3"], ["nib", 1.5, "two"], ["cap", 1.0, "5"],
        ["Total", 5.0, "12"],
    ]  # fmt: skip
    ([(count,)],), said, types = told(book(tmp_path / "t.xlsx", {"a": rows}), "SELECT count(*) FROM t")
    assert count == 4 and types["t"]["price"] == types["t"]["pieces"] == "VARCHAR"
    assert "“Total”, adds up" in said
    assert "column “price” is text, for 1 of 4 values is no number, such as “soon”" in said
    assert "column “pieces” is text, for 1 of 4 values is no number, such as “two”" in said


def test_years_over_quarters(tmp_path: Path) -> None:
    rows = [
        ["Region", 2023, None, 2024, None], [None, "Q1", "Q2", "Q1", "Q2"], ["North", 1, 2, 3, 4], ["South", 5, 6, 7, 8],
        ["Total", 6, 8, 10, 12],
    ]  # fmt: skip
    path = book(tmp_path / "q.xlsx", {"a": rows}, ["B1:C1", "D1:E1"])
    ([(first, last)],), said, types = told(path, 'SELECT sum("2023 Q1"), sum("2024 Q2") FROM q')
    assert (first, last) == (6, 12) and "“Total”, adds up" in said
    assert list(types["q"]) == ["Region", "2023 Q1", "2023 Q2", "2024 Q1", "2024 Q2"]


def test_units_below_the_names(tmp_path: Path) -> None:
    rows = [["day", "rain", "heat"], [None, "mm", "°C"], [DAY(2024, 1, 1), 3, 4.5], [DAY(2024, 1, 2), 5, 6.5]]
    ([(rain, heat)],), _, types = told(
        book(tmp_path / "w.xlsx", {"a": rows}), 'SELECT sum("rain mm"), sum("heat °C") FROM w'
    )
    assert (rain, heat) == (8, 11.0) and types["w"]["day"] == "DATE"


def test_tables_one_below_another(tmp_path: Path) -> None:
    rows = [
        ["Stock"], ["item", "n"], ["pen", 1], ["ink", 2], [], ["Towns"], ["town", "people", "area"], ["Bern", 10, 3.5],
        ["Chur", 20, 4.5], ["Thun", 30, 1.0],
    ]  # fmt: skip
    path = book(tmp_path / "two.xlsx", {"Sheet1": rows})
    (stock, towns), said, _ = told(path, "SELECT sum(n) FROM two", "SELECT sum(people), count(*) FROM two_Sheet1")
    assert (stock, towns) == ([(3,)], [(60, 3)]) and "the sheet holds 2 tables" in said


def test_tables_side_by_side(tmp_path: Path) -> None:
    rows = [
        ["item", "n", None, "town", "n"], ["pen", 1, None, "Bern", 10], ["ink", 2, None, "Chur", 20],
        ["nib", 4, None, None, None],
    ]  # fmt: skip
    path = book(tmp_path / "sides.xlsx", {"a": rows})
    (left, right), said, _ = told(path, "SELECT sum(n), count(*) FROM sides", "SELECT sum(n), count(*) FROM sides_a")
    assert (left, right) == ([(7, 3)], [(30, 2)]) and "the sheet holds 2 tables" in said


def test_formulas_without_values(tmp_path: Path) -> None:
    """A program that writes a workbook computes nothing; the sum was NULL, without a word."""
    rows = [["a", "b", "a + b"], [1, 2, "=A2+B2"], [3, 4, "=A3+B3"], [5, 6, 11]]
    (_,), said, _ = told(book(tmp_path / "f.xlsx", {"x": rows}), "FROM f")
    assert (
        "column “a + b” has 2 formulas without values; open the workbook in a spreadsheet program and save it" in said
    )


def test_codes_keep_their_digits(tmp_path: Path) -> None:
    rows = [
        ["plz", "article", "account", "phone", "release", "n"],
        [1067, 42, "1234567890123456789", "+491701234567", "1.9", 1],
        [80331, 1234, "1234567890123456790", "+4930765432", "1.10", 2],
    ]
    path = book(tmp_path / "codes.xlsx", {"a": rows}, formats={"A": "00000", "B": '"SKU-"0000'})
    (rows_read, [(accounts,)]), said, _ = told(path, "FROM codes", "SELECT count(DISTINCT account) FROM codes")
    assert [row[:2] for row in rows_read] == [("01067", "SKU-0042"), ("80331", "SKU-1234")]
    assert accounts == 2 and [row[3] for row in rows_read] == ["+491701234567", "+4930765432"]
    assert [row[4] for row in rows_read] == ["1.9", "1.10"] and "column “phone” is text" in said


def test_dates_of_every_kind(tmp_path: Path) -> None:
    rows = [
        ["mixed", "together", "took", "american", "slashes"],
        [DAY(2024, 3, 4), 20240105, datetime.timedelta(hours=30), "1/31/2024", "2/3/2024"],
        ["22/05/2024", 20240207, datetime.timedelta(minutes=90), "2/1/2024", "4/5/2024"],
    ]
    path = book(tmp_path / "d.xlsx", {"a": rows}, formats={"C": "[h]:mm"})
    ([first, second],), said, types = told(path, "FROM d")
    assert [row[0] for row in (first, second)] == [DAY(2024, 3, 4), DAY(2024, 5, 22)]
    assert second[1] == DAY(2024, 2, 7) and first[2] == datetime.timedelta(hours=30)
    assert types["d"]["took"] == "INTERVAL" and second[3] == DAY(2024, 2, 1)
    assert types["d"]["slashes"] == "DATE"
    assert second[4] == DAY(2024, 5, 4) or "could be the other way round" in said


def test_subtotals_a_grand_total_and_a_source(tmp_path: Path) -> None:
    rows = [
        ["region", "shop", "sold"], ["North", "a", 1], ["North", "b", 2], ["North Total", None, 3], ["South", "c", 4],
        ["South", "d", 5], ["South Total", None, 9], ["Grand Total", None, 12], [], ["Source: the shops' own lists, May 2024"],
    ]  # fmt: skip
    ([(sold, count)],), said, _ = told(book(tmp_path / "s.xlsx", {"a": rows}), "SELECT sum(sold), count(*) FROM s")
    assert (sold, count) == (12, 4)
    assert "2 rows that add up others, such as “North Total”, are left out" in said and "“Grand Total”, adds up" in said
    assert "the note “Source: the shops' own lists, May 2024” below the table is left out" in said


def test_numbers_beside_texts_of_numbers(tmp_path: Path) -> None:
    """The number 12.5 says nothing of what the comma is in the text 1.234,50."""
    rows = [["item", "price"], ["pen", 12.5], ["ink", "1.234,50"], ["nib", "0,25"]]
    ([(price,)],), _, _ = told(book(tmp_path / "n.xlsx", {"a": rows}), "SELECT sum(price) FROM n")
    assert price == 1247.25


def test_an_unnamed_total_and_an_average(tmp_path: Path) -> None:
    rows = [["item", "n", "m"], ["pen", 1, 10], ["ink", 2, 20], ["nib", 3, 30], [None, 6, 60]]
    ([(n, count)],), said, _ = told(book(tmp_path / "u.xlsx", {"a": rows}), "SELECT sum(n), count(*) FROM u")
    assert (n, count) == (6, 3) and "adds up those above it" in said
    rows[-1] = ["Average", 2, 20]
    ([(n, count)],), said, _ = told(book(tmp_path / "v.xlsx", {"a": rows}), "SELECT sum(n), count(*) FROM v")
    assert (n, count) == (6, 3)


@pytest.mark.parametrize(
    "rows",
    [
        [["brand", "sold"], ["Shell", 3], ["BP", 4], ["Total", 5]],
        [["item", "a", "b"], ["pen", 1, 5], [], ["ink", 2, 6], [], ["nib", 3, 7]],
        [["name", "note"], ["Ann", "x"], [], ["Bob", "y"]],
    ],
)
def test_what_is_one_table_stays_one(tmp_path: Path, rows: Cells) -> None:
    ([(count,)],), _, types = told(book(tmp_path / "one.xlsx", {"a": rows}), "SELECT count(*) FROM one")
    assert count == sum(map(bool, rows)) - 1 and list(types) == ["one"]


def test_names_that_are_repeated_and_a_note(tmp_path: Path) -> None:
    rows = [["item", "n"], ["pen", 1], ["ink", 2], [], ["item", "n"], ["nib", 3], [], ["Note: prices in EUR"]]
    ([(n, count)],), said, _ = told(book(tmp_path / "p.xlsx", {"a": rows}), "SELECT sum(n), count(*) FROM p")
    assert (n, count) == (6, 3)
    assert "the row of names is repeated once below" in said and "the note “Note: prices in EUR”" in said
