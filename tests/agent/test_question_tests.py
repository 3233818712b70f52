"""Files of questions are read as spreadsheets write them."""

from pathlib import Path

import pytest

from agent.question_tests import read_tests


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("question;sql\nHow many?;SELECT count(*) FROM t\n", "utf-8"),
        ("question;sql\nHow many – really?;SELECT count(*) FROM t\n", "cp1252"),
        ("question\tsql\nHow many – really?\tSELECT count(*) FROM t\n", "utf-16"),
    ],
)
def test_separators_and_encodings_are_found(tmp_path: Path, text: str, encoding: str) -> None:
    path = tmp_path / "questions.csv"
    path.write_bytes(text.encode(encoding))
    [question] = read_tests(path)
    assert question.question in ("How many?", "How many – really?") and question.sql == "SELECT count(*) FROM t"
