"""Guards what is told of a CSV file or workbook before it is used: titles, the row of names, and how each column was read."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.tools.databases.files.workbook import write_workbook
from tools.databases.files.file_kinds import ReadOtherwise
from tools.databases.files.sheets import DETECTED, Choice, Choices, Sheet, find_header
from tools.databases.open_database import open_database, open_uploads
from tools.result import Result

REPORT = (
    "Sales 2023;;;\nmade by;Ann;;\n\nitem;price;sold;share\npen;1.234,50;13.02.2023;12 %\nink;1.000;01.03.2023;5 %\n"
)
ROWS = [["Sales 2023"], [], ["item", "price"], ["pen", 1.5], ["ink", "n/a"], ["nib", "2,5"], ["cap", "soon"]]


def opened(*files: Path, choices: Choices = DETECTED) -> tuple[list[Sheet], list[tuple[object, ...]]]:
    """The sheets, and the rows of the first table."""
    database, sheets = open_uploads(files, choices)
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
    (sheet,), rows = opened(path, choices={("report.csv", ""): Choice(3)})
    assert sheet.header == 3 and sheet.columns[0].name == "pen" and len(rows) == 1
    (sheet,), rows = opened(path, choices={("report.csv", ""): Choice(None)})
    assert sheet.header is None and len(rows) == 3


def test_a_workbook_says_what_could_not_be_read(tmp_path: Path) -> None:
    book = write_workbook(tmp_path / "book.xlsx", {"May": ROWS, "June": [["a"], ["x"]]})
    sheets, rows = opened(book)
    assert [(sheet.name, sheet.table, sheet.header) for sheet in sheets] == [("May", "May", 1), ("June", "June", 0)]
    assert rows == [("pen", "1,5"), ("ink", "n/a"), ("nib", "2,5"), ("cap", "soon")]
    assert sheets[0].columns[1].note == "text, for 1 of 3 values is no number, such as “soon”"
    (sheet, _), rows = opened(book, choices={("book.xlsx", "May"): Choice(2)})
    assert sheet.columns[0].name == "pen" and rows[0][0] == "ink"


def test_a_late_title_costs_no_rows_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1,,\n2,,\n3,4,5\n")
    assert len(opened(path)[1]) == 3


def test_rows_that_a_spreadsheet_left_blank_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1;x\n;\n2;y\n;;\n")
    assert [row[0] for row in opened(path)[1]] == [1, 2]


TOTALS = "day;item;price\n01.02.2023;pen;1,50\n02.02.2023;ink;2,25\n03.02.2023;nib;0,25\n\nTotal;;4,00\n"


def test_a_row_of_totals_is_left_out_and_can_be_kept(tmp_path: Path) -> None:
    """With it, every sum would be doubled, and the days would stay text."""
    path = tmp_path / "sales.csv"
    path.write_text(TOTALS)
    with pytest.warns(
        ReadOtherwise, match="the last row of sales.csv, “Total”, adds up those above it, and is left out"
    ):
        (sheet,), rows = opened(path)
    assert [str(row[2]) for row in rows] == ["1.5", "2.25", "0.25"] and sheet.columns[0].type == "DATE"
    assert (sheet.total, sheet.keeps_total, sheet.row_count) == (("Total", "4,00"), False, 3)
    (sheet,), rows = opened(path, choices={("sales.csv", ""): Choice(keeps_total=True)})
    assert [row[0] for row in rows][-1] == "Total" and (sheet.keeps_total, sheet.row_count) == (True, 4)
    assert sheet.total == ("Total", "4,00")


@pytest.mark.parametrize(
    "text",
    [
        "brand,sold\nShell,3\nBP,4\nTotal,5\n",  # a company
        "brand,sold\nTotal,7\nBP,3\nShell,4\n",
        "item,sold\npen,5\nTotal,5\n",  # one row adds up nothing
        "item,note\npen,a\nink,b\nTotal,c\n",
        "item,sold\npen,2\nink,3\nTotals of May,6\n",
    ],
)
def test_other_rows_at_the_end_are_rows(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    (sheet,), rows = opened(path)
    assert sheet.total == () and len(rows) == len(text.splitlines()) - 1


def test_a_workbook_has_totals_too(tmp_path: Path) -> None:
    rows = [["Sales 2023"], ["item", "price"], ["pen", 1.5], ["ink", 2.25], ["Sum:", 3.75]]
    book = write_workbook(tmp_path / "book.xlsx", {"May": rows})
    with pytest.warns(ReadOtherwise, match=r"the last row of book.xlsx, “Sum:”"):
        (sheet,), found = opened(book)
    assert found == [("pen", 1.5), ("ink", 2.25)] and sheet.total == ("Sum:", "3.75")
    (sheet,), found = opened(book, choices={("book.xlsx", "May"): Choice(keeps_total=True)})
    assert found[-1] == ("Sum:", 3.75) and sheet.keeps_total
