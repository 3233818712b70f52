"""Training data of authored databases: three wordings of a question, turns with the turn that they continue."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from app.cli import app
from eval.datasets.authored import json_lines, part_of
from eval.datasets.sources import Question
from training.data.authored import authored_items, open_authored, paraphrased
from training.data.build import _authored, authored_groups
from training.data.options import Material, Options, Tally

OWN = Path(__file__).resolve().parents[3] / "training" / "authored"


def test_every_wording_and_turn_becomes_an_item(tmp_path: Path) -> None:
    """A turn is asked with the turn that it continues, whose SQL it carries on; nothing is asked without SQL."""
    folder, tally = OWN / "n001_pizza_delivery", Tally()
    database = open_authored(folder)
    try:
        items = list(authored_items(folder, database, tally))
    finally:
        database.close()
    lines = json_lines(folder / "questions.jsonl")
    answered = sum(bool(line["sql"]) for line in lines)
    turns = [turn for line in json_lines(folder / "dialogues.jsonl") for turn in line["turns"]]
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
    assert names == {*part_of(OWN, "train"), *part_of(OWN, "choosing")}
    assert names.isdisjoint(part_of(OWN, "sealed"))


def test_pairs_have_the_agents_steps(tmp_path: Path) -> None:
    material = Material(Path(), Options(authored=str(OWN), refine=0.0), (), {}, lambda text: len(text) // 4)
    made = authored_groups(OWN / "n001_pizza_delivery", "train.jsonl", material, tmp_path)
    pairs = [pair for groups in made.groups.values() for group in groups for pair in group.pairs]
    assert {pair.step for pair in pairs} == {"plan", "generate"}
    assert len(pairs) > 250


def test_paraphrases_ask_for_the_same_sql(tmp_path: Path) -> None:
    (tmp_path / "paraphrases.jsonl").write_text(
        '{"id": "spider/7", "other": "Who is oldest?", "short": "oldest one"}\n'
    )
    questions = [Question("spider/7", "spider", "pets", "Which person has the highest age?", "SELECT name FROM person")]
    found = paraphrased([*questions, replace(questions[0], id="spider/8")], tmp_path)
    assert [(each.id, each.text) for each in found] == [
        ("paraphrase/spider/7/0", "Who is oldest?"),
        ("paraphrase/spider/7/1", "oldest one"),
    ]
    assert {each.gold for each in found} == {"SELECT name FROM person"}


def test_the_check_finds_what_does_not_run_is_empty_or_is_asked_twice(tmp_path: Path) -> None:
    """Faults name places and no questions, because the sealed part is checked, too."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (tmp_path / "stray").mkdir()
    (tmp_path / "parts.json").write_text(json.dumps({"train": ["shop"], "choosing": [], "sealed": []}))
    made = "import sqlite3\ndef build(path):\n    with sqlite3.connect(path) as db:\n        db.execute('{}')\n"
    (folder / "build").write_text(made.format("CREATE TABLE sale AS SELECT 1 AS amount"))

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
    (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
    (folder / "dialogues.jsonl").write_text(json.dumps({"turns": turns}) + "\n")
    done = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert done.exit_code == 1
    told = [each for each in done.stderr.splitlines() if "of 1:" not in each]
    assert told == [
        "stray: in no part",
        "shop, question 2 is asked twice",
        "shop, question 3: its SQL does not run: no such column: price",
        "shop, question 4: its SQL finds nothing",
        "shop, question 7 needs two paraphrases",
        "shop, dialogue 1, turn 1 continues no earlier turn",
    ]
    counted = json.loads(done.stdout)
    assert (counted["questions"], counted["unanswerable"], counted["turns"], counted["faults"]) == (7, 2, 1, 6)
    assert (counted["skeletons"], counted["first_three_words"]) == (3, 6)
