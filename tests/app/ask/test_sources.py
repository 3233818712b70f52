"""What `--db` takes: files, several, patterns and folders, and what is left out of a folder."""

from pathlib import Path

import pytest

from app.shared import exit_codes
from tests.app.test_cli import run

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
