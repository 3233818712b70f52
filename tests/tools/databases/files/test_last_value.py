"""Guards files of text to their last value: types of all rows, letters of every encoding, JSON of every shape.

DuckDB's readers take types from the first 20,480 rows; behind them 2.75 became 3 and 00042 became 42, without a word.
"""

import json
import shutil
import sqlite3
import warnings
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tools.databases.files.file_kinds import best_encoding
from tools.databases.open_database import open_database
from tools.result import OpenError, Result

STRANGERS = Path(__file__).parents[4].parent / "shared" / "data" / "strangers"
LATE = 21_000  # rows before the last


def read(path: Path, where: str = "true") -> tuple[list[tuple[Any, ...]], list[str], str]:
    """The rows of the only table, its columns, and what was said."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        database = open_database(path)
    with closing(database):
        (table,) = database.schema().tables
        outcome = database.execute(f'SELECT * FROM "{table.name}" WHERE {where}')
        assert isinstance(outcome, Result), outcome
        said = "\n".join(str(each.message) for each in noted)
        return list(outcome.rows), [column.name for column in table.columns], said


@pytest.mark.parametrize(
    ("usual", "late", "kept"),
    [
        ("7", "2.75", 2.75),
        ("7", "00042", "00042"),
        ("7", "1_000", "1_000"),
        ("7", "12B", "12B"),
        ("7", "99999999999999999999", 99999999999999999999),
        ("7", "0x1F", "0x1F"),
        ("7", "true", "true"),
        ("7", "1e5x", "1e5x"),
        ("1.5", "12345678901234567.25", Decimal("12345678901234567.25")),
        ("1.5", "1,5", "1,5"),
        ("true", "maybe", "maybe"),
        ("true", "1", "1"),
        ("2024-01-05", "2024-01-06 10:30:00", datetime(2024, 1, 6, 10, 30)),
        ("2024-01-05", "soon", "soon"),
        ("2024-01-05", "2024-13-05", "2024-13-05"),
        ("10:30:00", "25:30:00", "25:30:00"),
        ("10:30:00", "10:30:00.250", "10:30:00.250000"),
        ("2024-01-05 10:00:00", "2024-01-05 10:00:00.123456", datetime(2024, 1, 5, 10, 0, 0, 123456)),
        ("7", " 8", 8),
        ("7", "n/a", None),
    ],
)
def test_the_last_value_of_a_csv_file(tmp_path: Path, usual: str, late: str, kept: object) -> None:
    path = tmp_path / "s.csv"
    path.write_text("m,v\n" + f"a,{usual}\n" * LATE + f'b,"{late}"\n')
    ((_, value),), _, _ = read(path, "m = 'b'")
    assert value == kept or str(value) == kept, value


@pytest.mark.parametrize(
    ("usual", "late", "kept"),
    [
        (7, 2.5, 2.5),
        (7, True, "true"),
        (7, "12B", "12B"),
        (7, [1], "[1]"),
        (7, {"a": 1}, '{"a":1}'),
        (True, 3, "3"),
        ("2024-01-05", "soon", "soon"),
        ("a", 3, "3"),
        (7, 2**64, 2**64),
        (1.5, 9007199254740993, 9007199254740993),
        (7, None, None),
    ],
)
def test_the_last_value_of_a_json_file(tmp_path: Path, usual: object, late: object, kept: object) -> None:
    path = tmp_path / "s.ndjson"
    lines = [json.dumps({"m": 1, "v": usual})] * LATE + [json.dumps({"m": 2, "v": late})]
    path.write_text("\n".join(lines))
    ((_, value),), _, _ = read(path, "m = 2")
    assert value == kept or str(value).replace(" ", "") == kept, value


@pytest.mark.parametrize("late", [{"note": "late"}, {"list": [1, 2]}, {"part": {"a": 1}}])
def test_a_key_that_comes_late(tmp_path: Path, late: dict[str, object]) -> None:
    """The second attempt asked for objects of a gigabyte, and could never run: 367 kB took too much memory."""
    path = tmp_path / "late_key.ndjson"
    path.write_text(
        "\n".join([json.dumps({"i": i, "c": 7}) for i in range(LATE)] + [json.dumps({"i": LATE, "c": 8} | late)])
    )
    with closing(open_database(path, isolated=True)) as database:
        result = database.execute("SELECT count(*), max(c) FROM late_key")
        assert isinstance(result, Result) and result.rows == ((LATE + 1, 8),)
        assert [column.name for column in database.schema().tables[0].columns] == ["i", "c", *late]


@pytest.mark.parametrize(
    ("text", "place"),
    [('[{"a":1},{"a":2},]', "line 1, column 18"), ('{"a":1}\n{"a":\n', "line 3"), ("[{'a': 1}]", "line 1, column 3")],
)
def test_broken_json_is_said_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(OpenError, match=place):
        open_database(path, isolated=True)


@pytest.mark.parametrize("text", ["[" * 300 + "1" + "]" * 300, '{"a":' * 300 + "1" + "}" * 300])
def test_json_of_300_levels_ends_in_one_line(tmp_path: Path, text: str) -> None:
    """It "takes too much memory to load", and later told of the engine's recursion."""
    path = tmp_path / "deep.json"
    path.write_text(text)
    with pytest.raises(OpenError, match="nested more than 128 levels deep; save a part of it that is flatter"):
        open_database(path, isolated=True)


def test_json_with_a_mark_and_in_a_wrapper(tmp_path: Path) -> None:
    marked, wrapped, deep, several = (tmp_path / f"{name}.json" for name in ("marked", "wrapped", "deep", "several"))
    marked.write_bytes(b'\xef\xbb\xbf[{"a":1}]')
    assert read(marked) == ([(1,)], ["a"], "")
    wrapped.write_text('{"data": [{"id": 1, "v": 2}, {"id": 2, "v": 3}], "total": 2, "page": 1}')
    rows, names, said = read(wrapped)
    assert (rows, names) == ([(1, 2), (2, 3)], ["id", "v"]) and "what stands next to them is left out" in said
    deep.write_text('{"response": {"status": "ok", "items": [{"id": 1}, {"id": 2}]}}')
    assert read(deep)[0] == [(1,), (2,)]
    several.write_text('{"users": [{"id": 1}], "orders": [{"no": 7}, {"no": 8}]}')
    with pytest.warns(UserWarning, match="“users”, “orders”"), closing(open_database(several)) as database:
        assert [table.name for table in database.schema().tables] == ["users", "orders"]


def test_dates_in_json_have_a_type_and_texts_of_digits_stay(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text(
        '[{"day": "31.01.2024", "zip": "01067", "n": "30"}, {"day": "01.02.2024", "zip": "80331", "n": "4"}]'
    )
    assert read(path)[0] == [(date(2024, 1, 31), "01067", "30"), (date(2024, 2, 1), "80331", "4")]


TOWNS = {
    "cp1252": ("Ort,Gäste\nMünchen,10\nKöln – Süd,20\nOrléans,5 €\n", "Windows-1252"),
    "cp1251": ("город,гости\nМосква,10\nКазань,20\n", "Windows-1251"),
    "koi8_r": ("город,гости\nМосква,10\nКазань,20\n", "KOI8-R"),
    "cp1250": ("město,hosté\nPlzeň,10\nČeské Budějovice,20\nŁódź,5\n", "Windows-1250"),
    "gb18030": ("城市,客户\n上海,10\n南京,20\n", "GB18030"),
    "big5": ("城市,客戶\n臺北,10\n高雄市,20\n", "Big5"),
    "cp932": ("都市,売上\n東京,10\n大阪の店,20\n", "Shift-JIS"),
    "cp949": ("도시,가격\n서울,10\n부산시,20\n", "Korean"),
    "mac_roman": ("ville,clients\nOrléans,10\nMünchen,20\n", "Mac Roman"),
    "cp1253": ("πόλη,πελάτες\nΑθήνα,10\nΠάτρα,20\n", "Windows-1253"),
    "utf-16-le": ("town,n\nMünchen,10\n", "UTF-16"),
    "utf-16-be": ("town,n\nMünchen,10\n", "UTF-16"),
}


@pytest.mark.parametrize("encoding", TOWNS)
def test_letters_of_every_encoding(tmp_path: Path, encoding: str) -> None:
    """They could not be opened, or came as other letters without a word."""
    text, name = TOWNS[encoding]
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    rows, names, said = read(path)
    lines = [line.split(",") for line in text.splitlines()]
    assert names == lines[0] and [row[0] for row in rows] == [line[0] for line in lines[1:]]
    assert f"is read as {name}" in said


def test_one_stray_byte_spoils_no_letters(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("town,n\nMünchen,1\nKöln,2\nMálaga,3\n".encode() + "Café,4\n".encode("cp1252"))
    rows, _, said = read(path)
    assert [row[0] for row in rows] == ["München", "Köln", "Málaga", "Café"]
    assert "is UTF-8 but for 1 byte that is read as Windows-1252" in said


def test_short_texts_in_old_encodings() -> None:
    assert best_encoding("5 €".encode("cp1252")) == "cp1252"
    assert best_encoding("Łódź".encode("cp1250")) == "cp1250"


@pytest.mark.parametrize(
    ("cells", "kept", "said"),
    [
        (["12E3", "45E1"], ["12E3", "45E1"], "may be codes"),
        (["1.5E+10", "2.0E-3"], [1.5e10, 2e-3], ""),
        (["NaN", "inf", "Infinity"], ["NaN", "inf", "Infinity"], ""),
        (["+491701234567", "+4930765432"], ["+491701234567", "+4930765432"], "part of a code"),
        (["+5", "-3"], [5, -3], ""),
        (["20240301", "20240315"], [date(2024, 3, 1), date(2024, 3, 15)], ""),
        (["20240301", "20249999"], [20240301, 20249999], ""),
        (["01/02/2024", "03/04/2024"], [date(2024, 2, 1), date(2024, 4, 3)], "could be the other way round"),
        (["1,234,567,890,123,456,789", "1,234,567,890,123,456,790"], [1234567890123456789, 1234567890123456790], ""),
        (["12345678901234567.89", "1.90"], [Decimal("12345678901234567.89"), Decimal("1.90")], ""),
        (["0.1234567890123456789", "0.5"], [Decimal("0.1234567890123456789"), Decimal("0.5")], ""),
        (["0.30000000000000004", "0.5"], [0.30000000000000004, 0.5], ""),
        (["1" * 45, "2"], ["1" * 45, "2"], "up to 45 digits"),
        (["3 pcs", "12 pcs", "1 pc"], [3, 12, 1], ""),
        (["3 pcs", "12", "1"], [3, 12, 1], "have no unit"),
        (["3 pcs", "2 boxes"], ["3 pcs", "2 boxes"], "different units: boxe, pc"),
        (["1.5k", "2M"], ["1.5k", "2M"], ""),
        (["12 a", "14", "16"], ["12 a", "14", "16"], "is no number"),
        (["TRUE", "false"], [True, False], ""),
    ],
)  # fmt: skip
def test_columns_lose_nothing(tmp_path: Path, cells: list[str], kept: list[object], said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("c,n\n" + "".join(f'"{cell}",{i}\n' for i, cell in enumerate(cells)))
    rows, _, told = read(path)
    assert [row[0] for row in rows] == kept
    assert said in told and bool(said) == bool(told), told


def test_versions_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("version,price\n1.9,1.9\n1.10,1.10\n2.0,2.0\n")
    rows, _, said = read(path)
    assert [row[0] for row in rows] == ["1.9", "1.10", "2.0"] and "not the same version" in said
    assert [row[1] for row in rows] == [1.9, 1.1, 2.0] and "read as numbers, so that 1.10 is 1.1" in said


def test_another_column_says_which_is_the_month(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("ordered,sent\n01/02/2024,01/31/2024\n03/04/2024,03/05/2024\n")
    rows, _, said = read(path)
    assert rows[0] == (date(2024, 1, 2), date(2024, 1, 31)) and said == ""


def test_short_rows_with_lines_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('id,note,tag\n1,"a\nb",x\n2,"c"\n3,"d\ne\nf",y\n4\n')
    assert read(path)[0] == [(1, "a\nb", "x"), (2, "c", None), (3, "d\ne\nf", "y"), (4, None, None)]


def test_two_header_rows_and_a_total_in_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text(
        "Region;2023;;2024;\n;Q1;Q2;Q1;Q2\nNord;1,5;2;3;4\nSüd;5;6;7;8\nSumme;6,5;8;10;12\n", encoding="cp1252"
    )
    rows, names, said = read(path)
    assert names == ["Region", "2023 Q1", "2023 Q2", "2024 Q1", "2024 Q2"]
    assert rows == [("Nord", 1.5, 2, 3, 4), ("Süd", 5.0, 6, 7, 8)] and "“Summe”, adds up" in said


@pytest.mark.parametrize("script", ["all text", "a blank among numbers"])
def test_numbers_in_text_columns_of_sqlite(tmp_path: Path, script: str) -> None:
    """`sqlite3 .import` makes every column TEXT, and the largest amount was 9: "9" follows "300"."""
    with closing(sqlite3.connect(tmp_path / "sale.sqlite")) as connection:
        if script == "all text":
            connection.execute("CREATE TABLE sale (id TEXT, shop TEXT, amount TEXT, sold_on TEXT)")
            rows = [("1", "North", "100", "2024-01-05"), ("2", "South", "9", "2024-03-01"), ("3", "North", "300", "2023-12-31"),
                    ("4", "South", "", "2024-02-02")]  # fmt: skip
            connection.executemany("INSERT INTO sale VALUES (?, ?, ?, ?)", rows)
        else:
            connection.execute("CREATE TABLE sale (id INTEGER PRIMARY KEY, shop TEXT, amount INTEGER)")
            connection.executemany(
                "INSERT INTO sale VALUES (?, ?, ?)", [(1, "N", 100), (2, "S", ""), (3, "N", "300"), (4, "S", 9)]
            )
        connection.commit()
    with closing(open_database(tmp_path / "sale.sqlite")) as database:
        result = database.execute("SELECT max(amount), round(avg(amount), 2), count(*) FILTER (amount > 50) FROM sale")
        assert isinstance(result, Result) and result.rows == ((300, 136.33, 2),)


RIGHT: dict[str, list[tuple[Any, ...]]] = {
    "07_encodings/t9_cyr.csv": [("Москва", 10), ("Казань", 20)],
    "07_encodings/t9_dash.csv": [("cup", "blue – small"), ("plate", "“fine”")],
    "07_encodings/t9_euro.csv": [("Tasse", 4.5), ("Teller", 7.2)],
    "07_encodings/t9_gb.csv": [("北京", 10), ("上海", 20)],
    "07_encodings/t9_mac.csv": [("München", 10), ("Köln", 20)],
    "07_encodings/t9_mixed.csv": [("München", 10), ("Köln", 20), ("Málaga", 30), ("Café Rouge", 40)],
    "07_encodings/t9_sjis.csv": [("渋谷", 10), ("新宿", 20)],
    "07_encodings/t9_u16nobom.csv": [("München", 10), ("Köln", 20)],
    "11_long_numbers/t12_dec.csv": [(Decimal("12345678901234567.89"), 1), (Decimal("12345678901234567.90"), 2)],
    "11_long_numbers/thousands.csv": [(1234567890123456789, 1), (1234567890123456790, 2)],
    "11_long_numbers/e13_longid.xlsx": [(1234567890123456789, 0.1), (1234567890123456790, 0.2)],
    "15_excel/e6_mixeddate.xlsx": [
        ("a", date(2000, 5, 22)), ("b", date(2002, 3, 4)), ("c", date(1999, 1, 13)), ("d", date(2001, 1, 2)),
    ],
    "15_excel/e10_twohead.xlsx": [("North", 1, 2, 3, 4), ("South", 5, 6, 7, 8)],
    "15_excel/f1_zerofmt.xlsx": [("01067", 3), ("04109", 5), ("80331", 7)],
    "15_excel/f7_ymd.xlsx": [(date(2024, 1, 5), 3), (date(2024, 2, 7), 4)],
    "16_json/j13_bom.json": [(1,)],
    "16_json/j3_wrapped.json": [(1, 2), (2, 3)],
    "20_small/t10_ragnl.csv": [(1, "a\nb", "x"), (2, "c", None), (3, "d\ne\nf", "y"), (4, None, None)],
    "20_small/t12_hex.csv": [("0x10", 1), ("0x1F", 2)],
    "20_small/t12_nan.csv": [("NaN", 1), ("inf", 2), ("Infinity", 3)],
    "20_small/t12_phone2.csv": [("+491701234567", 1), ("+4930765432", 2)],
    "20_small/t12_sci.csv": [("12E3", 1), ("45E1", 2), ("7E2", 3)],
    "20_small/t12_ver.csv": [("1.9", 1), ("1.10", 2), ("2.0", 3)],
    "20_small/t12_ymd.csv": [(date(2024, 3, 1), 1), (date(2024, 3, 15), 2)],
}  # fmt: skip
SAID = {
    "15_excel/e14_formula.xlsx": "2 formulas without values",
    "15_excel/e12_twotables.xlsx": "the sheet holds 2 tables",
    "20_small/t12_amb.csv": "month and day could be the other way round",
}


@pytest.mark.parametrize("name", [name for name in RIGHT if (STRANGERS / name).exists()])
def test_strangers_files(tmp_path: Path, name: str) -> None:
    """The files of public bug reports' natures, where they are at hand; each has an equal above or among the workbooks."""
    path = Path(shutil.copy(STRANGERS / name, tmp_path))
    assert read(path)[0] == RIGHT[name]


@pytest.mark.parametrize("name", [name for name in SAID if (STRANGERS / name).exists()])
def test_what_is_said_of_strangers_files(name: str) -> None:
    with pytest.warns(UserWarning, match=SAID[name]), closing(open_database(STRANGERS / name)):
        pass
