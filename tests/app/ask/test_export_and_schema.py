"""`ask --out`, `to_pandas`, and `schema`.

What commands print is complete and literal, and is JSON where JSON was asked for.

What `--db` takes: files, several, patterns and folders, and what is left out of a folder.
"""

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from agent.conversation import Answer
from app.shared import exit_codes
from app.shared.options import SHOWN_ROWS
from tests.app.test_cli import COUNT, run, script, singer, tiny

__all__ = ["script", "singer", "tiny"]


@pytest.mark.parametrize("ending", ["csv", "parquet", "xlsx"])
def test_an_answer_is_written_with_its_headings(tiny: str, singer: str, script, tmp_path: Path, ending: str) -> None:  # type: ignore[no-untyped-def]
    script("plan", "SELECT country, avg(age) FROM singer GROUP BY country")
    path = tmp_path / f"answer.{ending}"
    result = run("ask", "Average age?", "--db", singer, "--model", tiny, "--out", str(path))
    assert result.exit_code == 0, result.output
    assert "2 rows written" in result.stderr
    read = f"read_xlsx('{path}')" if ending == "xlsx" else f"'{path}'"
    if ending != "xlsx":  # DuckDB needs an extension for workbooks, which is not fetched here
        with duckdb.connect() as connection:
            rows = connection.execute(f'SELECT country, "average age" FROM {read} ORDER BY country').fetchall()
        assert rows == [("France", 26.5), ("Spain", 45.0)]
    else:
        assert path.read_bytes()[:2] == b"PK"


def test_a_file_that_cannot_be_written_is_one_line(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    for path, says in (("answer.pdf", "must end in .csv, .parquet, .xlsx"), ("/no/such/folder/a.csv", "cannot write")):
        script("plan", COUNT)
        result = run("ask", "How many?", "--db", singer, "--model", tiny, "--out", path)
        assert result.exit_code == exit_codes.USAGE
        assert says in result.stderr


def test_schema_lists_and_describes_what_may_be_seen(singer: str) -> None:
    listed = run("schema", "--db", singer)
    assert "name, country, age" in listed.stdout
    hidden = run("schema", "singer", "--db", singer, "--hide", "singer.age")
    assert "country" in hidden.stdout
    assert "age" not in hidden.stdout
    assert "name, country, age" in run("sql", "SHOW TABLES;", "--db", singer).stdout
    described = run("sql", "describe singer", "--db", singer, "--hide", "singer.age")
    assert "country" in described.stdout and "age" not in described.stdout
    missing = run("schema", "singr", "--db", singer)
    assert missing.exit_code == exit_codes.USAGE
    assert "there is: singer" in missing.stderr
    assert json.loads(run("schema", "--db", singer, "--json").stdout)[0]["name"] == "singer"
    with duckdb.connect() as connection:
        connection.execute(run("schema", "--sql").stdout.split("\n\n")[0])


ROOT = Path(__file__).parents[3]


def test_cells_and_headings_are_neither_markup_nor_terminal_codes() -> None:
    result = run("sql", """SELECT '[abc]' AS "[/h]", ':smile:' AS b, '[/x]' AS c, chr(27) || '[2J' AS d""")
    assert result.exit_code == 0
    for text in ("[/h]", "[abc]", ":smile:", "[/x]", r"\x1b[2J"):
        assert text in result.stdout
    assert "\x1b" not in result.stdout


def test_a_csv_export_is_complete() -> None:
    """It once ended after 1,000 rows, with exit code 0."""
    rows = 2 * SHOWN_ROWS + 1
    result = run("sql", f"SELECT * FROM range({rows})", "--csv")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, rows + 1)


def test_a_csv_export_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = run("sql", "SELECT * FROM range(9)", "--csv", "--limit", "4")
    assert asked.exit_code == exit_codes.OK  # what was asked for
    assert "only the first 4 rows" in asked.stderr
    monkeypatch.setattr("app.ask.inspect.EXPORTED_ROWS", 5)
    result = run("sql", "SELECT * FROM range(9)", "--csv")
    assert (result.exit_code, len(result.stdout.splitlines())) == (exit_codes.INCOMPLETE, 6)
    assert "only the first 5 rows" in result.stderr


def test_a_file_for_spreadsheets_has_no_formulas_and_stdout_is_exact(tmp_path: Path) -> None:
    """Programs read stdout; people open files."""
    statement, path = "SELECT '=1+1' AS a, -5 AS b", tmp_path / "rows.csv"
    assert run("sql", statement, "--csv").stdout.splitlines() == ["a,b", "=1+1,-5"]
    result = run("sql", statement, "--out", str(path))
    assert (result.exit_code, result.stdout, path.read_text().splitlines()) == (0, "", ["a,b", "'=1+1,-5"])
    assert f"1 rows written to {path}" in result.stderr
    refused = run("sql", statement, "--out", "rows.pdf")
    assert refused.exit_code == exit_codes.USAGE
    assert "must end in .csv, .parquet, .xlsx" in refused.stderr


def test_a_file_that_lacks_rows_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ask.inspect.EXPORTED_ROWS", 5)
    result = run("sql", "SELECT * FROM range(9)", "--out", str(tmp_path / "rows.csv"))
    assert result.exit_code == exit_codes.INCOMPLETE
    assert "only the first 5 rows" in result.stderr


def test_json_holds_numbers_null_and_readable_bytes() -> None:
    statement = (
        "SELECT 'NaN'::DOUBLE, 1.50::DECIMAL(5,2), 'ab'::BLOB, DATE '2020-01-02', [1.5, NULL], 12345678901234567.25"
    )
    result = run("sql", statement, "--json")
    rows = json.loads(result.stdout, parse_constant=pytest.fail)["rows"]
    assert rows == [[None, 1.5, "6162", "2020-01-02", [1.5, None], "12345678901234567.25"]]


@pytest.mark.parametrize("command", [["sql", "SELECT 1"], ["ask", "How many?"], ["chat"]])
def test_json_is_printed_where_the_database_cannot_be_opened(command: list[str]) -> None:
    result = run(*command, "--db", "/no/such/file.csv", "--json")
    assert result.exit_code == exit_codes.DATABASE
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "connection"
    assert "/no/such/file.csv" in error["message"]


def test_the_engines_own_tables_are_not_suggested(tmp_path: Path) -> None:
    (tmp_path / "nosuchthing.csv").write_text("a\n1\n")
    result = run("sql", "SELECT * FROM nosuch")
    assert "pg_" not in result.stderr
    assert "nosuch" in result.stderr
    assert "there is: nosuchthing" in run("sql", "SELECT * FROM nosuchthin", "--db", str(tmp_path)).stderr


def test_ask_with_an_empty_pipe_is_no_question() -> None:
    """It once answered the example's question."""
    result = run("ask", stdin="")
    assert result.exit_code == exit_codes.USAGE
    assert "no question" in result.stderr


@pytest.mark.parametrize(
    ("option", "says"),
    [("block_size=abc", "a whole number"), ("block_size=true", "a whole number"), ("block_size=0", "1 or more")],
)
def test_a_wrong_option_of_a_decoder_is_one_line(option: str, says: str) -> None:
    result = run("ask", "How many?", "--decoder", "jacobi", "-o", option)
    assert result.exit_code == exit_codes.USAGE
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_closed_pipe_is_no_complaint() -> None:
    """`sqlagent sql ... | head -1` and `sqlagent logs | head -1` once complained of a broken pipe."""
    code = "from app.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "sql", "SELECT * FROM range(200000)", "--csv"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().strip() == b"range"
        process.stdout.close()
        assert process.stderr.read() == b""


JOINED = "SELECT a, c FROM one, two"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.csv").write_text("a,b\n1,2\n")
    (tmp_path / "two.csv").write_text("c,d\n3,4\n")
    return tmp_path


def test_repeated_commas_patterns_and_folders_open_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated `--db` once dropped the first one, and a pattern was refused."""
    one, two = str(folder / "one.csv"), str(folder / "two.csv")
    for given in (
        ["--db", one, "--db", two],
        ["--db", f"{one},{two}"],
        ["--db", f"{folder}/*.csv"],
        ["--db", str(folder)],
    ):
        result = run("sql", JOINED, *given, "--csv")
        assert result.stdout.split() == ["a,c", "1,3"], (given, result.output)
    monkeypatch.setenv("SQLAGENT_DB", f"{one},{two}")
    assert run("sql", JOINED, "--csv").stdout.split() == ["a,c", "1,3"]


def test_a_name_with_a_comma_a_blank_or_brackets_is_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("three,four.csv", "three four.csv", "three[4].csv"):
        path = folder / name
        path.write_text("x,y\n5,6\n")
        monkeypatch.setenv("SQLAGENT_DB", str(path))
        table = "three_4" if "[" in name else "three_four"
        assert run("sql", f"SELECT x FROM {table}", "--csv").stdout.split() == ["x", "5"]


def test_a_folder_opens_without_what_cannot_be_read_and_says_so(folder: Path) -> None:
    (folder / "empty.csv").touch()
    (folder / "torn.parquet").write_bytes(b"PAR1 and no more")
    (folder / "odd.json").write_text('{"a": [1, 2')
    result = run("sql", JOINED, "--db", str(folder), "--csv")
    assert result.exit_code == 0
    assert result.stdout.split() == ["a,c", "1,3"]
    for name in ("empty.csv", "torn.parquet", "odd.json"):
        assert f"{name} is left out" in result.stderr


def test_a_file_that_is_named_must_be_read(folder: Path) -> None:
    (folder / "torn.parquet").write_bytes(b"PAR1 and no more")
    result = run("sql", JOINED, "--db", str(folder / "one.csv"), "--db", str(folder / "torn.parquet"))
    assert result.exit_code == exit_codes.DATABASE
    assert "torn.parquet" in result.stderr
    assert run("sql", "SELECT 1", "--db", f"{folder}/*.xyz").exit_code == exit_codes.DATABASE


def test_pandas_gets_whole_numbers_where_some_are_missing() -> None:
    """A column of fractions made 9007199254740992 of 9007199254740993."""
    rows = [[9007199254740993, True, "a", 1.5], [None, None, None, None]]
    names = ["n", "yes", "n", "f"]
    frame = Answer("", "", "duckdb", names, rows, False, "", [], [], 1.0, None, None).to_pandas()
    assert int(frame.iloc[0, 0]) == 9007199254740993 and list(frame.columns) == names
    assert [str(kind) for kind in frame.dtypes][:2] == ["Int64", "boolean"] and frame.iloc[0, 3] == 1.5
    assert bool(frame.iloc[1].isna().all())
