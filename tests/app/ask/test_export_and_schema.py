"""`ask --out`, `to_pandas`, and `schema`."""

import json
from pathlib import Path

import duckdb
import pytest

from agent.conversation import Answer
from app.shared import exit_codes
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


def test_pandas_gets_whole_numbers_where_some_are_missing() -> None:
    """A column of fractions made 9007199254740992 of 9007199254740993."""
    rows = [[9007199254740993, True, "a", 1.5], [None, None, None, None]]
    names = ["n", "yes", "n", "f"]
    frame = Answer("", "", "duckdb", names, rows, False, "", [], [], 1.0, None, None).to_pandas()
    assert int(frame.iloc[0, 0]) == 9007199254740993 and list(frame.columns) == names
    assert [str(kind) for kind in frame.dtypes][:2] == ["Int64", "boolean"] and frame.iloc[0, 3] == 1.5
    assert bool(frame.iloc[1].isna().all())
