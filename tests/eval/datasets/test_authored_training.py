"""Training data of authored databases: three wordings of a question, turns with the turn that they continue."""

from collections import Counter
from pathlib import Path

from eval.datasets.official import json_lines, part_of
from training.data.build import _authored, authored_groups, authored_items, open_authored
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
