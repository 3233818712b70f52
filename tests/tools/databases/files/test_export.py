"""Guards exported files: every row, every value, readable by those who read such files."""

import csv
import re
import zipfile
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from python_calamine import CalamineWorkbook

from tools.databases.files import export as exports
from tools.databases.files.export import FORMATS, ExportError, export
from tools.result import Result

ROWS = (
    (1, "Ada, \"the\" one\nand only", Decimal("1.50"), date(2020, 2, 29), datetime(2021, 1, 2, 3, 4, 5), None),
    (2, "=1+1", Decimal("-7.25"), date(1999, 12, 31), datetime(1970, 1, 1), True),
)  # fmt: skip
RESULT = Result(("id", "name", "price", "day", "at", "ok"),
                ("INTEGER", "VARCHAR", "DECIMAL(9,2)", "DATE", "TIMESTAMP", "BOOLEAN"), ROWS, False, 1.0)  # fmt: skip


def test_csv_holds_every_cell(tmp_path: Path) -> None:
    export(RESULT, tmp_path / "r.csv", "csv")
    with (tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == list(RESULT.columns)
    assert rows[1][1] == ROWS[0][1]
    assert len(rows) == 3


def test_parquet_keeps_values_and_types(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    export(RESULT, path, "parquet")
    read = duckdb.sql(f"SELECT * FROM '{path}'")
    assert [str(kind) for kind in read.types] == list(RESULT.types)
    assert tuple(read.fetchall()) == ROWS
    assert [file.name for file in tmp_path.iterdir()] == ["r.parquet"]


def test_parquet_takes_types_of_other_engines_and_columns_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    export(Result(("n", "N"), ("NUMBER", "what"), ((1, "a"), (2, "b")), False, 1.0), path, "parquet")
    assert duckdb.sql(f"SELECT * FROM '{path}'").fetchall() == [(1, "a"), (2, "b")]


def test_a_workbook_keeps_numbers_and_never_computes_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "r.xlsx"
    export(RESULT, path, "xlsx")
    rows = CalamineWorkbook.from_path(str(path)).get_sheet_by_index(0).to_python()
    assert rows[0] == list(RESULT.columns)
    assert rows[2][:3] == [2, "=1+1", -7.25]


def test_a_sheet_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "EXCEL_ROWS", 1)
    with pytest.raises(ExportError, match="export CSV"):
        export(RESULT, tmp_path / "r.xlsx", "xlsx")


@pytest.mark.parametrize("kind", FORMATS)
def test_no_rows_make_a_file_too(tmp_path: Path, kind: exports.Format) -> None:
    export(Result(("a",), ("INTEGER",), (), False, 1.0), tmp_path / "r", kind)
    assert (tmp_path / "r").stat().st_size > 0


FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1")
NUMBERS = ("-12.5", "+49", "1e-3", "-.5")


def _of_texts(*texts: str) -> Result:
    return Result(("=name",), ("VARCHAR",), tuple((text,) for text in texts), False, 1.0)


def test_a_text_that_begins_like_a_formula_is_inert_in_csv(tmp_path: Path) -> None:
    export(_of_texts(*FORMULAS, *NUMBERS, "a=b"), tmp_path / "r.csv", "csv")
    with (tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        cells = [row[0] for row in csv.reader(file)]
    assert cells == ["'=name", *(f"'{text}" for text in FORMULAS), *NUMBERS, "a=b"]


def test_numbers_below_nought_stay_numbers(tmp_path: Path) -> None:
    export(RESULT, tmp_path / "r.csv", "csv")
    assert "-7.25" in (tmp_path / "r.csv").read_text().splitlines()[-1].split(",")


def test_a_text_that_begins_like_a_formula_is_marked_as_text_in_a_workbook(tmp_path: Path) -> None:
    export(_of_texts("=1+1", "plain"), tmp_path / "r.xlsx", "xlsx")
    with zipfile.ZipFile(tmp_path / "r.xlsx") as book:
        sheet, styles = book.read("xl/worksheets/sheet1.xml").decode(), book.read("xl/styles.xml").decode()
    assert "<f>" not in sheet
    assert 'quotePrefix="1"' in styles
    assert re.search(r'<c r="A2" s="\d+"', sheet) and not re.search(r'<c r="A3" s=', sheet)


def test_parquet_keeps_texts_that_begin_like_formulas(tmp_path: Path) -> None:
    export(_of_texts("=1+1"), tmp_path / "r.parquet", "parquet")
    assert duckdb.sql(f"SELECT * FROM '{tmp_path}/r.parquet'").fetchall() == [("=1+1",)]


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_ends_at_its_quota(tmp_path: Path, kind: exports.Format) -> None:
    with pytest.raises(ExportError, match="left for exports"):
        export(_of_texts("x" * 600_000, "x" * 600_000), tmp_path / "r", kind, most_bytes=1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_every_value_of_every_kind_comes_back_from_parquet(tmp_path: Path) -> None:
    """A sum of whole numbers is a HUGEINT, which came as DOUBLE; lists, bytes and spans of time came as Python writes them."""
    query = (
        "SELECT 9007199254740993::BIGINT AS b, 170141183460469231731687303715884105::HUGEINT AS h, sum(7) AS s, "
        "12345678901234567.89::DECIMAL(19, 2) AS d, [1, 2] AS l, {'a': 1, 'b': 'x'} AS r, '\\xAA'::BLOB AS bl, "
        "INTERVAL 30 HOUR AS i, MAP {'k': 1} AS m, 12345678901234567890::UBIGINT AS u, 1.5::DOUBLE AS f, TIME '01:02:03' AS t, "
        "TIMESTAMP '2020-01-01 01:02:03.456' AS ts, true AS y, '00042' AS v, NULL::BIGINT AS n"
    )
    with duckdb.connect() as connection:
        cursor = connection.execute(query)
        types = tuple(str(each[1]) for each in cursor.description or ())
        names, rows = tuple(each[0] for each in cursor.description or ()), tuple(cursor.fetchall())
    export(Result(names, types, rows, False, 1.0), tmp_path / "r.parquet", "parquet")
    read = duckdb.sql(f"SELECT * FROM '{tmp_path}/r.parquet'")
    assert tuple(read.fetchall()) == rows
    kept = dict(zip(names, map(str, read.types), strict=True))
    assert {name for name, type_ in zip(names, types, strict=True) if kept[name] != type_} <= {"h", "s"}
    assert kept["h"] == "DECIMAL(38,0)"


def test_numbers_of_other_engines_keep_their_digits(tmp_path: Path) -> None:
    rows = ((Decimal("12345678901234567.8901"),), (Decimal("1"),), (None,))
    export(Result(("n",), ("NUMERIC",), rows, False, 1.0), tmp_path / "r.parquet", "parquet")
    assert duckdb.sql(f"SELECT * FROM '{tmp_path}/r.parquet'").fetchall() == list(rows)


def test_text_files_have_no_python_in_them(tmp_path: Path) -> None:
    row = (
        b"\xaa",
        timedelta(days=1, hours=6),
        [1, None],
        {"a": "ü"},
        Decimal("12345678901234567.89"),
        9007199254740993,
    )
    result = Result(("b", "i", "l", "r", "d", "n"), ("BLOB",) * 6, (row,), False, 1.0)
    export(result, tmp_path / "r.csv", "csv")
    with (tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.reader(file))[1]
    assert cells == ["aa", "30:00:00", "[1, null]", '{"a": "ü"}', "12345678901234567.89", "9007199254740993"]
    export(result, tmp_path / "r.xlsx", "xlsx")
    assert CalamineWorkbook.from_path(str(tmp_path / "r.xlsx")).get_sheet_by_index(0).to_python()[1] == cells
