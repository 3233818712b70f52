"""Authored data: what is read of them, and that every statement of the project's own runs and returns rows."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from eval.accuracy.dialogue_files import authored_dialogues
from eval.datasets.official import DatasetError, json_lines, load_authored, made_database, part_of
from eval.datasets.selection import load_dataset

OWN = Path(__file__).resolve().parents[3] / "training" / "authored"
NAMES = sorted(path.parent.name for path in OWN.glob("*/build"))
KINDS = {
    "filter",
    "top",
    "group",
    "arithmetic",
    "date",
    "list",
    "never",
    "compare_average",
    "share",
    "set",
    "text",
    "two_steps",
    "none",
}
BUILD = """
import sqlite3
def build(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE pets (name TEXT, kind TEXT)")
    db.execute("INSERT INTO pets VALUES ('Rex', 'dog'), ('Tom', 'cat')")
    db.commit()
    db.close()
"""


def folder(tmp_path: Path, questions: list[dict[str, Any]]) -> Path:
    """A folder of authored data with one database, which is for choosing."""
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "build").write_text(BUILD)
    (tmp_path / "pets" / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
    turn = {"question": "Which dogs?", "sql": "SELECT name FROM pets WHERE kind = 'dog'", "kind": "opening"}
    (tmp_path / "pets" / "dialogues.jsonl").write_text(json.dumps({"turns": [turn | {"continues": None}]}) + "\n")
    (tmp_path / "parts.json").write_text(json.dumps({"train": [], "choosing": ["pets"], "sealed": []}))
    return tmp_path


def test_questions_and_turns_are_read(tmp_path: Path) -> None:
    """What the data cannot answer has no SQL, and is not scored by rows."""
    count = {
        "question": "How many pets?",
        "sql": "SELECT COUNT(*) FROM pets",
        "kind": "filter",
        "evidence": "all of them",
    }
    data = folder(tmp_path, [count, {"question": "How old is Rex?", "sql": "", "kind": "none"}])
    (example,) = load_dataset("authored", data)
    assert (example.id, example.db_id, example.difficulty, example.evidence) == (
        "pets/1",
        "pets",
        "filter",
        "all of them",
    )
    assert example.database is not None
    with sqlite3.connect(example.database) as made:
        assert made.execute(example.gold).fetchall() == [(2,)]
    made.close()
    assert load_authored(data, "train") == []
    (dialogue,) = authored_dialogues(data, "choosing")
    assert (dialogue.id, dialogue.database, len(dialogue.turns)) == ("pets/1", str(example.database), 1)


def test_a_folder_without_parts_is_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"parts\.json is not there"):
        load_authored(tmp_path, "choosing")


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    data = folder(tmp_path, [])
    (data / "pets" / "questions.jsonl").write_text("{}\n{\n")
    with pytest.raises(DatasetError, match="line 2 is not JSON"):
        json_lines(data / "pets" / "questions.jsonl")


def test_each_database_is_in_one_part() -> None:
    """Guards that no question of the sealed part is trained on."""
    parts = [part_of(OWN, part) for part in ("train", "choosing", "sealed")]
    assert sorted(name for part in parts for name in part) == NAMES
    assert all(len(part) > 3 for part in parts)


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_runs(name: str) -> None:
    """A statement that fails, or returns nothing where rows are meant, would teach a model to write it."""
    questions = json_lines(OWN / name / "questions.jsonl")
    turns = [turn for line in json_lines(OWN / name / "dialogues.jsonl") for turn in line["turns"]]
    assert {line["kind"] for line in questions} <= KINDS
    assert all(len(line["paraphrases"]) == 2 for line in questions)
    made = sqlite3.connect(f"file:{made_database(OWN / name)}?mode=ro", uri=True)
    try:
        for line in questions + turns:
            rows = made.execute(line["sql"]).fetchmany(500) if line["sql"] else [(1,)]
            assert line.get("empty") or any(value is not None for row in rows for value in row), line["sql"]
    finally:
        made.close()
