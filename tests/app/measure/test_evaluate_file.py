"""`eval file`: one's own questions, judged by the rows of one's own SQL."""

import csv
import json
from pathlib import Path

import pytest

from app.shared import exit_codes
from tests.app.test_cli import COUNT, run, script, singer, tiny

__all__ = ["script", "singer", "tiny"]
QUESTIONS = (
    "Question,SQL\n"
    "How many are from France?,SELECT count(*) FROM singer WHERE country IN ('France')\n"
    "How many are from Spain?,SELECT count(*) FROM singer WHERE country = 'Spain'\n"
)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.txt"
    path.write_text(QUESTIONS)
    return path


def test_verdicts_follow_the_rows(tiny: str, singer: str, script, questions: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The script says the same to both questions; only the first answer is right."""
    script(*["plan", COUNT] * 4)
    out = tmp_path / "verdicts.csv"
    asked = ("eval", "file", str(questions), "--db", singer, "--model", tiny)
    found = json.loads(run(*asked, "--json").stdout)
    assert (found["questions"], found["right"]) == (2, 1)
    assert [each["right"] for each in found["verdicts"]] == [True, False]
    printed = run(*asked, "--out", str(out))
    assert printed.exit_code == 0, printed.output
    assert "1 of 2 right: 50.0 %" in printed.stdout
    with out.open(newline="") as file:
        assert [row["right"] for row in csv.DictReader(file)] == ["True", "False"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "the columns question and sql"),
        ("question,sql\n", "no questions"),
        ("question,sql\nHow many?,\n", "line 2 lacks"),
        ("question,sql\nHow many?,SELECT nonsense FROM singer\n", "line 2: its SQL does not run"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tiny: str, singer: str, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "questions.csv"
    path.write_text(text)
    result = run("eval", "file", str(path), "--db", singer, "--model", tiny)
    assert result.exit_code == exit_codes.USAGE
    assert says in result.stderr
    assert run("eval", "file", str(tmp_path / "none.csv"), "--db", singer).exit_code == exit_codes.USAGE
