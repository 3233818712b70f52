"""The benchmarks as their folders hold them, and what a wrong folder is told."""

import json
from pathlib import Path

import pytest

from eval.datasets.official import DatasetError
from eval.datasets.selection import load_dataset


def test_spider_dev_is_whole(spider: Path) -> None:
    """Guards the loader: every question, and a database for all but those on wta_1."""
    examples = load_dataset("spider", spider)
    assert len(examples) == 1034
    assert sum(example.executable for example in examples) == 972
    assert {example.db_id for example in examples if not example.executable} == {"wta_1"}
    assert [example.id for example in examples] == [str(i) for i in range(1034)]


def test_limit_takes_the_first_executable_questions(spider: Path) -> None:
    """Guards comparability: the same N always means the same questions, all of which can be scored."""
    every = [example for example in load_dataset("spider", spider) if example.executable]
    assert load_dataset("spider", spider, limit=450) == every[:450]
    assert load_dataset("spider", spider, limit=5, db="car_1") == [e for e in every if e.db_id == "car_1"][:5]


def test_bird_dev_in_its_folder_and_above(bird: Path) -> None:
    """Guards the layouts: dev/ itself, and the folder around it."""
    examples = load_dataset("bird", bird / "dev")
    assert examples == load_dataset("bird", bird)
    assert len(examples) == 1534
    on_superhero = load_dataset("bird", bird, db="superhero")
    assert len(on_superhero) == 129
    assert all(example.executable for example in on_superhero)
    assert {example.difficulty for example in examples} == {"simple", "moderate", "challenging"}
    assert on_superhero[0].evidence


def test_mini_dev_takes_the_databases_of_dev(bird: Path) -> None:
    """Guards mini-dev without a dev_databases folder of its own."""
    examples = load_dataset("bird", bird / "minidev")
    assert len(examples) == 500
    assert sum(example.executable for example in examples) == 52


def test_gold_that_exact_match_cannot_read_has_no_hardness(invented: Path, tmp_path: Path) -> None:
    """Guards the loader against SQL outside of the official grammar."""
    (tmp_path / "tables.json").write_bytes((invented / "tables.json").read_bytes())
    query = "SELECT CASE WHEN born > 1955 THEN 1 END FROM author"
    (tmp_path / "dev.json").write_text(json.dumps([{"db_id": "library", "question": "q", "query": query}]))
    (example,) = load_dataset("spider", tmp_path)
    assert (example.difficulty, example.executable) == ("", False)


@pytest.mark.parametrize(
    ("name", "files", "db", "says"),
    [
        ("sider", {}, None, "choose one of spider, bird, held_out"),
        ("spider", {}, None, "dev.json is not there: Spider's folder holds"),
        ("spider", {"dev.json": "[]"}, None, "tables.json is not there"),
        ("spider", {"dev.json": "{"}, None, "dev.json is not JSON"),
        ("spider", {"dev.json": "{}"}, None, "dev.json is not a list of questions"),
        ("spider", {"dev.json": "[]", "tables.json": "[]"}, None, "no question left"),
        ("bird", {}, None, "dev.json is not there: BIRD's folder holds"),
        ("bird", {"dev.json": "[]"}, "superhero", "on database superhero"),
    ],
)
def test_wrong_folder_is_told_what_is_missing(
    tmp_path: Path, name: str, files: dict[str, str], db: str | None, says: str
) -> None:
    """Guards against a traceback where one line says what to do."""
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(DatasetError, match=says) as raised:
        load_dataset(name, tmp_path, db=db)
    assert "\n" not in str(raised.value)
