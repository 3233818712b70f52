"""Authored data: what is read of them, and that every statement of the project's own runs and returns rows.

Training data of authored databases: three wordings of a question, turns with the turn that they continue.

Hints of the answer in training data: as often as asked, with the wrong ones, and never of anything else.

Samples: which questions are asked.

The benchmarks as their folders hold them, and what a wrong folder is told.
"""

import json
import lzma
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from agent.prompts.compact import hints
from agent.prompts.slots import Plan, PlannedTable
from app.cli import app
from eval.accuracy.dialogues import Databases, authored_dialogues
from eval.datasets.authored import Authored, Part, json_lines, load_authored, made_database, pack, read_authored, unpack
from eval.datasets.official import DatasetError, Example, Question
from eval.datasets.selection import load_dataset, sampled
from tools.linking.link_schema import Link
from tools.schema import Column, Schema, Table
from training.data.build import _authored, authored_groups, authored_items, open_authored, paraphrased
from training.data.examples import with_gold
from training.data.options import Material, Options, Tally
from training.packs.groups import Group

OWN = Path(__file__).resolve().parents[3] / "training" / "authored"
PARTS: dict[Part, list[Authored]] = {part: read_authored(OWN, part) for part in get_args(Part)}
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


def data_of(tmp_path: Path, questions: list[dict[str, Any]]) -> Path:
    """A folder of authored data with one database, which is for choosing."""
    turn = {"question": "Which dogs?", "sql": "SELECT name FROM pets WHERE kind = 'dog'", "kind": "opening"}
    line = {
        "name": "pets",
        "build": BUILD,
        "questions": questions,
        "dialogues": [{"turns": [turn | {"continues": None}]}],
    }
    (tmp_path / "choosing.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path


def test_questions_and_turns_are_read(tmp_path: Path) -> None:
    """What the data cannot answer has no SQL, and is not scored by rows."""
    count = {
        "question": "How many pets?",
        "sql": "SELECT COUNT(*) FROM pets",
        "kind": "filter",
        "evidence": "all of them",
    }
    data = data_of(tmp_path, [count, {"question": "How old is Rex?", "sql": "", "kind": "none"}])
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
    with closing(Databases([dialogue], timeout_s=5)) as databases:  # it runs the gold queries, which are SQLite's
        assert databases.of(dialogue).dialect == "sqlite"


def test_a_folder_without_data_is_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no authored data"):
        load_authored(tmp_path, "choosing")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("a.jsonl", b"{}\n{\n", "line 2 is not JSON"), ("a.jsonl.xz", b"{}\n", "cannot read"), ("b", None, "cannot read")],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: bytes | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(DatasetError, match=says):
        json_lines(tmp_path / name)


def test_folders_are_packed_as_a_further_file_of_a_part(tmp_path: Path) -> None:
    """Databases are added by a file next to those that are there; what is unpacked and packed again has the same bytes."""
    (tmp_path / "drafts").mkdir()
    data = data_of(tmp_path, [{"question": "Zoë?", "sql": "", "kind": "none"}])
    assert unpack(data / "choosing.jsonl", tmp_path / "drafts") == 1
    (tmp_path / "drafts" / "pets").rename(tmp_path / "drafts" / "pets_2")
    assert pack(tmp_path / "drafts", data / "choosing-2.jsonl.xz") == 1
    first, second = read_authored(data, "choosing")
    assert (first.name, second.name) == ("pets", "pets_2")
    assert replace(second, name="pets") == first
    unpack(data / "choosing-2.jsonl.xz", tmp_path / "again")
    assert pack(tmp_path / "again", tmp_path / "again.xz") == 1
    assert (tmp_path / "again.xz").read_bytes() == (data / "choosing-2.jsonl.xz").read_bytes()
    with pytest.raises(DatasetError, match="has no folder of a database"):
        pack(data, tmp_path / "none.xz")


def test_each_database_is_in_one_part() -> None:
    """Guards that no question of the sealed part is trained on."""
    names = [each.name for part in PARTS.values() for each in part]
    assert len(names) == len(set(names)) > 500
    assert all(len(part) > 50 for part in PARTS.values())


@pytest.mark.parametrize("authored", [each for part in PARTS.values() for each in part], ids=lambda each: each.name)
def test_every_statement_runs(authored: Authored) -> None:
    """A statement that fails, or returns nothing where rows are meant, would teach a model to write it."""
    turns = [turn for line in authored.dialogues for turn in line["turns"]]
    assert {line["kind"] for line in authored.questions} <= KINDS
    assert all(len(line["paraphrases"]) == 2 for line in authored.questions)
    made = sqlite3.connect(f"file:{made_database(authored)}?mode=ro", uri=True)
    try:
        for line in [*authored.questions, *turns]:
            rows = made.execute(line["sql"]).fetchmany(500) if line["sql"] else [(1,)]
            assert line.get("empty") or any(value is not None for row in rows for value in row), line["sql"]
    finally:
        made.close()


def pizza() -> Authored:
    return next(each for each in PARTS["train"] if each.name == "n001_pizza_delivery")


def test_every_wording_and_turn_becomes_an_item(tmp_path: Path) -> None:
    """A turn is asked with the turn that it continues, whose SQL it carries on; nothing is asked without SQL."""
    authored, tally = pizza(), Tally()
    database = open_authored(authored)
    try:
        items = list(authored_items(authored, database, tally))
    finally:
        database.close()
    answered = sum(bool(line["sql"]) for line in authored.questions)
    turns = [turn for line in authored.dialogues for turn in line["turns"]]
    kinds = Counter("turn" if "/turn-" in item.id else "question" for item in items)
    assert kinds == {"question": 3 * answered, "turn": len(turns)}
    assert not tally.left_out
    leaning = [item for item in items if item.history]
    assert len(leaning) == sum(turn["continues"] is not None for turn in turns)
    assert all(item.kind for item in leaning) and not any(item.kind for item in items if not item.history)


def test_choosing_is_held_out_and_sealed_is_not_there() -> None:
    """Guards the sealed part: nothing of it may be trained on."""
    material = Material(Path(), Options(authored=str(OWN)), (), {}, len)
    names = {name.removeprefix("authored-") for name in _authored(material)}
    assert names == {each.name for part in ("train", "choosing") for each in PARTS[part]}
    assert names.isdisjoint(each.name for each in PARTS["sealed"])


def _material(variants: float) -> Material:
    options = Options(authored=str(OWN), variants=variants, refine=0.0)
    return Material(Path(), options, (), {}, lambda text: len(text) // 4)


def _groups(file: str, variants: float, scratch: Path) -> list[Group]:
    made = authored_groups(pizza(), file, _material(variants), scratch)
    return [group for groups in made.groups.values() for group in groups]


def test_pairs_have_the_agents_steps(tmp_path: Path) -> None:
    (group,) = _groups("train.jsonl", 0.0, tmp_path)
    assert {pair.step for pair in group.pairs} == {"plan", "generate"}
    assert len(group.pairs) > 250


def test_training_questions_are_asked_under_new_names_as_well_and_held_out_ones_are_not(tmp_path: Path) -> None:
    (own,) = _groups("train.jsonl", 0.0, tmp_path)
    first, *renamed = _groups("train.jsonl", 1.0, tmp_path)
    assert first.prefix == own.prefix and len({group.prefix for group in renamed}) > 5
    assert sum(len(group.pairs) for group in renamed) > 0.9 * len(own.pairs)
    (held_out,) = _groups("held_out/authored.jsonl", 1.0, tmp_path)
    assert held_out.prefix == own.prefix


SCHEMA = Schema((Table("dog", (Column("id", "INT", True), Column("age", "INT"), Column("name", "TEXT"))),), "sqlite")
LINKS = (Link("dog", "name", 1.3), Link("dog", None, 0.4), Link("dog", "age", 0.2))
PLAN = Plan((PlannedTable("dog", ("age",)),), "SELECT _ FROM _")


def test_a_share_of_what_linking_misses_is_hinted() -> None:
    assert with_gold(LINKS, PLAN, SCHEMA, 0.0, Random(0)) == LINKS
    assert hints(LINKS, SCHEMA) == "dog: name"
    made = [hints(with_gold(LINKS, PLAN, SCHEMA, 0.6, Random(seed)), SCHEMA) for seed in range(500)]
    assert all("name" in hint and "id" not in hint for hint in made)  # the wrong hint stays, and no other comes
    assert 0.54 < sum("age" in hint for hint in made) / 500 < 0.66


def test_every_hint_of_the_answer_with_share_one_and_the_same_for_a_seed() -> None:
    once, again = (with_gold(LINKS, PLAN, SCHEMA, 1.0, Random(7)) for _ in range(2))
    assert once == again and {link.column for link in once if link.score >= 0.8} == {None, "age", "name"}
    assert list(once) == sorted(once, key=lambda link: -link.score) and len(once) == len(LINKS)


_SIZES = {"a": 40, "b": 20, "c": 12, "d": 8}
_MANY = [Example(f"{name}{i}", name, "?", "SELECT 1") for name, size in _SIZES.items() for i in range(size)]


def test_a_sample_is_spread_like_the_whole_and_part_of_every_larger_one() -> None:
    chosen = sampled(_MANY, 20)
    assert Counter(example.db_id for example in chosen) == pytest.approx({"a": 10, "b": 5, "c": 3, "d": 2}, abs=1)
    assert chosen == [example for example in _MANY if example in chosen], "in the order given"
    assert set(chosen) < set(sampled(_MANY, 30))
    assert chosen != _MANY[:20]
    assert sampled(_MANY, 500) == _MANY


def test_a_sample_of_spider_is_executable(spider: Path) -> None:
    examples = load_dataset("spider", spider, sample=100)
    assert len(examples) == 100
    assert all(example.executable for example in examples)
    assert len({example.db_id for example in examples}) >= 18


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


def test_gold_that_cannot_be_read_has_no_hardness(tmp_path: Path) -> None:
    """Guards the loader against a gold query that is no SQL."""
    query = "SELECT name FROM author WHERE ("
    (tmp_path / "dev.json").write_text(json.dumps([{"db_id": "library", "question": "q", "query": query}]))
    (example,) = load_dataset("spider", tmp_path)
    assert (example.difficulty, example.executable) == ("", False)


@pytest.mark.parametrize(
    ("name", "files", "db", "says"),
    [
        ("sider", {}, None, "choose one of spider, bird, held_out"),
        ("spider", {}, None, "dev.json is not there: Spider's folder holds"),
        ("spider", {"dev.json": "{"}, None, "dev.json is not JSON"),
        ("spider", {"dev.json": "{}"}, None, "dev.json is not a list of questions"),
        ("spider", {"dev.json": "[]"}, None, "no question left"),
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


def test_paraphrases_ask_for_the_same_sql(tmp_path: Path) -> None:
    line = b'{"id": "spider/7", "other": "Who is oldest?", "short": "oldest one"}\n'
    (tmp_path / "paraphrases.jsonl.xz").write_bytes(lzma.compress(line))
    questions = [Question("spider/7", "spider", "pets", "Which person has the highest age?", "SELECT name FROM person")]
    found = paraphrased([*questions, replace(questions[0], id="spider/8")], tmp_path)
    assert [(each.id, each.text) for each in found] == [
        ("paraphrase/spider/7/0", "Who is oldest?"),
        ("paraphrase/spider/7/1", "oldest one"),
    ]
    assert {each.gold for each in found} == {"SELECT name FROM person"}


def test_the_check_finds_what_does_not_run_is_empty_or_is_asked_twice(tmp_path: Path) -> None:
    """Faults name places and no questions, because the sealed part is checked, too."""
    made = "import sqlite3\ndef build(path):\n    with sqlite3.connect(path) as db:\n        db.execute('{}')\n"
    build = made.format("CREATE TABLE sale AS SELECT 1 AS amount")

    def line(sql: str, question: str, **more: object) -> dict[str, object]:
        return {"question": question, "sql": sql, "kind": "list", "paraphrases": ["a", "b"]} | more

    right = line("SELECT amount FROM sale", "Every amount?")
    questions = [right, right, line("SELECT price FROM sale", "Prices?"), line("SELECT 1 FROM sale WHERE 0", "None?")]
    questions += [
        line("SELECT 1 FROM sale WHERE 0", "Any?", empty=True),
        line("", "Why?"),
        line("", "How?", paraphrases=[]),
    ]
    turns = [{"question": "Sum?", "sql": "SELECT SUM(amount) FROM sale", "kind": "opening", "continues": 1}]
    shop = {"name": "shop", "build": build, "questions": questions, "dialogues": [{"turns": turns}]}
    (tmp_path / "train.jsonl").write_text(json.dumps(shop) + "\n")
    (tmp_path / "sealed-2.jsonl").write_text(json.dumps(shop | {"questions": [], "dialogues": []}) + "\n")
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 1
    told = [each for each in done.stderr.splitlines() if "of 2:" not in each]
    assert told == [
        "shop is there twice",
        "shop, question 2 is asked twice",
        "shop, question 3: its SQL does not run: no such column: price",
        "shop, question 4: its SQL finds nothing",
        "shop, question 7 needs two paraphrases",
        "shop, dialogue 1, turn 1 continues no earlier turn",
    ]
    counted = json.loads(done.stdout)
    assert (counted["questions"], counted["unanswerable"], counted["turns"], counted["faults"]) == (7, 2, 1, 6)
    assert (counted["skeletons"], counted["first_three_words"]) == (3, 6)
