"""Guards what is told of a CSV file or workbook before it is used: titles, the row of names, and how each column was read."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.tools.databases.files.workbook import write_workbook
from tools.databases.files.sheets import DETECTED, Headers, Sheet, find_header
from tools.databases.open_database import open_database, open_uploads
from tools.result import Result

REPORT = (
    "Sales 2023;;;\nmade by;Ann;;\n\nitem;price;sold;share\npen;1.234,50;13.02.2023;12 %\nink;1.000;01.03.2023;5 %\n"
)
ROWS = [["Sales 2023"], [], ["item", "price"], ["pen", 1.5], ["ink", "n/a"], ["nib", "2,5"]]


def opened(*files: Path, headers: Headers = DETECTED) -> tuple[list[Sheet], list[tuple[object, ...]]]:
    """The sheets, and the rows of the first table."""
    database, sheets = open_uploads(files, headers)
    with closing(database):
        result = database.execute(f'FROM "{sheets[0].table}"')
        assert isinstance(result, Result)
        return list(sheets), list(result.rows)


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        ([["a", "b"], ["1", "2"]], 0),
        ([["Sales", ""], ["a", "b"], ["1", "2"]], 1),
        ([["Sales", "", ""], ["from", "May", ""], ["a", "b", "c"], ["1", "2", ""]], 2),
        ([["name", ""], ["ann", " x"], ["bob", " y"]], 0),
        ([["a", "b", "c"], ["1", "2", "3"], ["4", "5"], ["6", "7", "8", "9"]], 0),
        ([["name"], ["ann"]], 0),
        ([], 0),
    ],
)
def test_titles_stand_above_the_names(rows: list[list[str]], header: int) -> None:
    assert find_header(rows) == header


def test_a_report_with_titles_is_read_from_its_names_on(tmp_path: Path) -> None:
    """1.000 would be a fraction, did the other price not say that the comma is the decimal sign."""
    path = tmp_path / "report.csv"
    path.write_text(REPORT)
    (sheet,), rows = opened(path)
    assert [str(cell) for cell in rows[0]] == ["pen", "1234.5", "2023-02-13", "12"]
    assert [str(cell) for cell in rows[1]] == ["ink", "1000.0", "2023-03-01", "5"]
    assert (sheet.header, sheet.table, sheet.row_count) == (2, "report", 2)
    assert sheet.first[0][0] == "Sales 2023"
    assert [(column.name, column.type) for column in sheet.columns] == [
        ("item", "VARCHAR"), ("price", "DOUBLE"), ("sold", "DATE"), ("share", "BIGINT"),
    ]  # fmt: skip
    assert sheet.columns[1].note == "decimal comma" and sheet.columns[3].note == "in percent"
    with closing(open_database(path)) as database:  # as it is read from the command line
        assert database.schema().tables[0].columns[3].comment == "in percent"


def test_a_point_between_thousands_is_no_decimal_point(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1.234;0,5\n2.000;1,5\n")
    assert opened(path)[1] == [(1234, 0.5), (2000, 1.5)]


def test_another_row_can_name_the_columns_or_none(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    path.write_text(REPORT)
    (sheet,), rows = opened(path, headers={("report.csv", ""): 3})
    assert sheet.header == 3 and sheet.columns[0].name == "pen" and len(rows) == 1
    (sheet,), rows = opened(path, headers={("report.csv", ""): None})
    assert sheet.header is None and len(rows) == 3


def test_a_workbook_says_what_could_not_be_read(tmp_path: Path) -> None:
    book = write_workbook(tmp_path / "book.xlsx", {"May": ROWS, "June": [["a"], ["x"]]})
    sheets, rows = opened(book)
    assert [(sheet.name, sheet.table, sheet.header) for sheet in sheets] == [("May", "May", 1), ("June", "June", 0)]
    assert rows == [("pen", "1.5"), ("ink", "n/a"), ("nib", "2,5")]
    (sheet, _), rows = opened(book, headers={("book.xlsx", "May"): 2})
    assert sheet.columns[0].name == "pen" and rows[0][0] == "ink"


def test_a_late_title_costs_no_rows_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1,,\n2,,\n3,4,5\n")
    assert len(opened(path)[1]) == 3


def test_rows_that_a_spreadsheet_left_blank_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1;x\n;\n2;y\n;;\n")
    assert [row[0] for row in opened(path)[1]] == [1, 2]
