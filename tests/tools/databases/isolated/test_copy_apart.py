"""Guards loading against files that are made to exhaust a machine: a line, soon, and little memory."""

import os
import resource
import sqlite3
import time
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.tools.databases.files.workbook import write_workbook
from tools.databases import isolated_database
from tools.databases.files import sheets
from tools.databases.files.load_files import Copied
from tools.databases.open_database import open_database, open_uploads
from tools.processes import ChildProcess
from tools.result import OpenError, Result

FAR = '<row r="20000"><c r="XFD20000"><v>1</v></c></row></sheetData>'


def grown_mb(path: Path, message: str) -> float:
    """Open a file that must be refused; MiB by which the program and its children grew meanwhile, and how soon."""
    before, start = peak_mb(), time.monotonic()
    with pytest.raises(OpenError, match=message) as refused:
        open_database(path, isolated=True)
    assert "\n" not in str(refused.value)
    assert time.monotonic() - start < 60
    return peak_mb() - before


def peak_mb() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024


def changed(path: Path, old: str, new: str) -> Path:
    """The workbook with a part of its first sheet replaced."""
    with zipfile.ZipFile(path) as book:
        files = {name: book.read(name).decode() for name in book.namelist()}
    files["xl/worksheets/sheet1.xml"] = files["xl/worksheets/sheet1.xml"].replace(old, new)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        for name, text in files.items():
            book.writestr(name, text)
    return path


def test_a_sheet_that_reaches_far_is_refused(tmp_path: Path) -> None:
    path = write_workbook(tmp_path / "far.xlsx", {"a": [["x"]]})
    changed(path, "</sheetData>", FAR)
    assert path.stat().st_size < 3000
    assert grown_mb(path, "20,000 rows and 16,384 columns") < 500


def test_a_sheet_whose_places_are_not_seen_is_stopped_by_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the look before misses."""
    path = write_workbook(tmp_path / "far.xlsx", {"a": [["x"]]})
    changed(
        path, "</sheetData>", FAR.replace('<c r="XFD20000">', "<c r='XFD20000'>").replace('<row r="20000">', "<row>")
    )
    assert grown_mb(path, "takes more than 1024 MiB of memory") < 3000


def test_one_cell_far_out_is_loaded(tmp_path: Path) -> None:
    path = write_workbook(tmp_path / "one.xlsx", {"a": [["x"], [1]]})
    changed(path, "</sheetData>", '<row r="3"><c r="XFD3"><v>1</v></c></row></sheetData>')
    database = open_database(path, isolated=True)
    assert len(database.schema().tables[0].columns) == 2
    database.close()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_csv_file_of_too_many_columns_is_refused(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(separator.join(f"c{i}" for i in range(100_000)) for _ in range(2)))
    start = time.monotonic()
    assert grown_mb(path, "100,000 columns") < 500
    assert time.monotonic() - start < 20


def test_many_separators_inside_quotes_are_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "quoted.csv"
    path.write_text(f'a,"{"," * 10_000}"\n1,2\n')
    sheets.check_csv(path)


def test_loading_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    monkeypatch.setattr(isolated_database, "LEAST_S", 0.01)
    with pytest.raises(OpenError, match="takes longer than"):
        open_database(tmp_path / "a.csv", isolated=True)


def test_loading_ends_at_its_room_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("a\n" + "\n".join(os.urandom(40).hex() for _ in range(40_000)))
    monkeypatch.setattr(isolated_database, "LEAST_DISK_MB", 1)
    monkeypatch.setattr(isolated_database, "DISK_PER_MB", 0)
    with pytest.raises(OpenError) as refused:
        open_database(tmp_path / "a.csv", isolated=True)
    assert "\n" not in str(refused.value)


def test_a_reader_that_crashes_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")

    class Dying(ChildProcess):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.kill()

    monkeypatch.setattr(isolated_database, "ChildProcess", Dying)
    with pytest.raises(OpenError, match="is damaged, or takes more than"):
        open_database(tmp_path / "a.csv", isolated=True)


def test_what_is_loaded_apart_is_what_is_loaded_here(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,day\n1,2020-01-02\n")
    write_workbook(tmp_path / "b.xlsx", {"one": [["x", "y"], [1, "u"]], "two": [["z"], [True]]})
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as made:
        made.executescript(
            """CREATE TABLE p (id INTEGER PRIMARY KEY, at DATE); INSERT INTO p VALUES (1, '2020-01-02');
            CREATE TABLE q (p_id INTEGER REFERENCES p (id)); CREATE VIEW v AS SELECT id FROM p;"""
        )
    here, elsewhere = open_database(tmp_path), open_database(tmp_path, isolated=True)
    assert here.schema() == elsewhere.schema()
    outcome = elsewhere.execute("SELECT * FROM a, one")
    assert isinstance(outcome, Result) and outcome.rows == here.execute("SELECT * FROM a, one").rows  # type: ignore[union-attr]
    here.close()
    elsewhere.close()


def test_an_answer_of_another_shape_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    for answer in ({}, {"names": [1], "notes": {}}, {"names": ["a"], "notes": {"a": {"name": 3}}}):
        monkeypatch.setattr(isolated_database, "_answer", lambda *_, answer=answer: answer)
        with pytest.raises(OpenError):
            open_database(tmp_path / "a.csv", isolated=True)
    assert Copied(("a",), {}).names == ("a",)


def test_nothing_of_an_uploaded_duckdb_file_is_read_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that crashes DuckDB would end the web chat for everybody; views are rows afterwards."""
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY); INSERT INTO item VALUES (1), (2)")
        connection.execute("COMMENT ON TABLE item IS 'what is sold'; CREATE VIEW one AS SELECT id FROM item LIMIT 1")
    opened: list[str] = []
    connect = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda file, **rest: (opened.append(file), connect(file, **rest))[1])
    with closing(open_uploads([path])[0]) as database:
        assert opened and str(path) not in opened
        tables = {table.name: table for table in database.schema().tables}
        assert tables["item"].comment == "what is sold" and tables["item"].columns[0].primary_key
        result = database.execute("SELECT (SELECT count(*) FROM item), (SELECT id FROM one)")
        assert isinstance(result, Result) and result.rows == ((2, 1),)
