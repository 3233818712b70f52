"""`sqlagent check` and `sqlagent test`: verdicts, exit codes and files, as a script that calls them sees them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.shared import exit_codes
from tests.app.test_cli import COUNT, run, script, singer, tiny

__all__ = ["script", "singer", "tiny"]


def test_check_names_what_speaks_against_it(singer: str) -> None:
    """Without a question no model is loaded: the one named here does not exist."""
    asked = ("check", "SELECT name FROM singer WHERE country = NULL", "--db", singer, "--model", "/no/such/model")
    printed = run(*asked)
    assert printed.exit_code == exit_codes.FOUND, printed.output
    assert "reads singer: name, country" in printed.stdout
    assert "warning: country = NULL is never true" in printed.stdout
    found = json.loads(run(*asked, "--json").stdout)
    assert [each["kind"] for each in found["findings"] if each["severity"] == "warning"] == ["null_comparison"]


@pytest.mark.parametrize(
    ("sql", "code", "says"),
    [
        ("SELECT name FROM singer", exit_codes.OK, "No problems were found."),
        ("SELECT nam FROM singer", exit_codes.DATABASE, "error: It does not run"),
        ("DROP TABLE singer", exit_codes.REFUSED, "only SELECT"),
    ],
)
def test_check_ends_with_a_code(singer: str, sql: str, code: int, says: str) -> None:
    found = run("check", "-", "--db", singer, stdin=sql)
    assert (found.exit_code, says in found.stdout) == (code, True), found.output


def test_check_compares_with_our_reading(tiny: str, singer: str, script) -> None:  # type: ignore[no-untyped-def]
    """A condition that the question names and the SQL lacks is a warning; the same rows are a note."""
    question = ("--question", "How many singers are from France?", "--db", singer, "--model", tiny, "--json")
    script(*["plan", COUNT] * 4)
    lacks = json.loads(run("check", "SELECT COUNT(*) FROM singer", *question).stdout)
    kinds = {each["kind"]: each for each in lacks["findings"]}
    assert kinds["unused_value"]["severity"] == "warning" and "France" in kinds["unused_value"]["sentence"]
    assert "gives 2, this SQL 3; the SQL doesn't say country = 'France'" in kinds["other_reading"]["sentence"]
    same = run("check", COUNT, *question)
    assert same.exit_code == exit_codes.OK and "same_reading" in same.stdout


TESTS = """
- question: How many are from France?
  sql: SELECT count(*) FROM singer WHERE country IN ('France')
- question: How many are from Spain?
  rows: [[1]]
- question: How many are French?
  at_least: 0.9
- question: Delete all singers
  declines: true
"""


@pytest.fixture
def tests(tmp_path: Path) -> str:
    path = tmp_path / "questions.yaml"
    path.write_text(TESTS)
    return str(path)


def test_verdicts_and_junit(tiny: str, singer: str, script, tests: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The script counts the French whatever is asked, so the answer about Spain is wrong; nobody calibrated this model."""
    script(*["plan", COUNT] * 3)
    report = tmp_path / "report.xml"
    done = run("test", tests, "--db", singer, "--model", tiny, "--junit", str(report), "--json")
    assert done.exit_code == exit_codes.FOUND, done.output
    found = json.loads(done.stdout)
    assert [each["failures"] for each in found["verdicts"]] == [
        [],
        ["Expected 1, found 2."],
        ["It should be 90% sure; its confidence is unknown."],
        [],
    ]
    suite = ElementTree.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase/failure"))) == ("4", "2", 2)


def test_answers_that_another_database_changes_are_named(tiny: str, singer: str, script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    script(*["plan", COUNT] * 2)
    asked, later = tmp_path / "q.jsonl", tmp_path / "later" / "singer.csv"
    asked.write_text('{"question": "How many are from France?"}\n')
    later.parent.mkdir()
    later.write_text(Path(singer).read_text() + "Di,France,50\n")
    done = run("test", str(asked), "--db", singer, "--against", str(later), "--model", tiny)
    assert done.exit_code == exit_codes.FOUND, done.output
    assert "changes the answer from 2 to 3" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("q.csv", "question,asks_bak\nWho?,true\n", "asks_bak"),
        ("q.yaml", "question: Who?\n", "a list of questions"),
        ("q.jsonl", "3\n", "write an object"),
        ("q.csv", "question,rows\nWho?,[1]\n", "rows"),
        ("q.csv", "question\n", "no questions"),
        ("q.csv", "question,sql\nWho?,SELECT nonsense FROM singer\n", "its SQL does not run"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    tiny: str, singer: str, tmp_path: Path, name: str, text: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    done = run("test", str(path), "--db", singer, "--model", tiny)
    assert done.exit_code == exit_codes.USAGE, done.output
    assert says in done.stderr and done.stderr.count("\n") == 1
