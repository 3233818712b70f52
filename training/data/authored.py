"""Items of the authored data: each question in its three wordings, and the later turns of its dialogues.

A turn that continues another is asked with that turn as its history, as the agent shows it; a turn that stands alone is
asked as a first question. Questions that the data cannot answer have no SQL and make no item. `paraphrases.jsonl` has two
wordings more of training questions of Spider and BIRD, by the questions' ids.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from eval.datasets.authored import json_lines, made_database
from eval.datasets.gold_databases import Target, TrainingDatabase, gold_target
from eval.datasets.gold_sql import GoldError
from eval.datasets.sources import Question
from tools.databases.choices import with_choices
from tools.databases.open_database import open_database
from training.data.examples import Item
from training.data.options import Tally
from training.data.parts import found_values


def paraphrased(questions: Iterable[Question], folder: Path) -> list[Question]:
    """The questions in the wordings that the folder's `paraphrases.jsonl` has for them. Raises DatasetError."""
    by_id = {line["id"]: (line["other"], line["short"]) for line in json_lines(folder / "paraphrases.jsonl")}
    return [
        replace(question, id=f"paraphrase/{question.id}/{number}", text=text)
        for question in questions
        for number, text in enumerate(by_id.get(question.id, ()))
    ]


def open_authored(folder: Path) -> TrainingDatabase:
    """The database of a folder of authored data. Raises DatasetError."""
    native = open_database(made_database(folder), engine="sqlite")
    return TrainingDatabase(folder.name, with_choices(native.schema(), native), native, has_rows=True)


def authored_items(folder: Path, database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    """Every question and turn whose gold SQL is verified. Raises DatasetError."""
    yield from _questions(folder, database, tally)
    yield from _turns(folder, database, tally)


def _questions(folder: Path, database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    for number, line in enumerate(json_lines(folder / "questions.jsonl"), 1):
        target = _target(line["sql"], database, tally)
        if target is None:
            continue
        evidence = line.get("evidence", "")
        for wording, text in enumerate((line["question"], *line["paraphrases"])):
            values = found_values(database, f"{text} {evidence}".strip())
            yield Item(f"authored/{folder.name}/{number}/{wording}", text, evidence, target, values)


def _turns(folder: Path, database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    for number, line in enumerate(json_lines(folder / "dialogues.jsonl"), 1):
        known: dict[int, tuple[str, Target]] = {}
        for place, turn in enumerate(line["turns"], 1):
            target = _target(turn["sql"], database, tally)
            if target is None:
                continue
            known[place] = (turn["question"], target)
            before = known.get(turn["continues"] or 0)
            if turn["continues"] and before is None:
                continue
            values = found_values(database, turn["question"])
            kind = turn["kind"] if before else ""
            history = (before,) if before else ()
            name = f"authored/{folder.name}/turn-{number}-{place}"
            yield Item(name, turn["question"], "", target, values, history, kind)


def _target(sql: str, database: TrainingDatabase, tally: Tally) -> Target | None:
    if not sql:
        return None
    tally.golds["all"] += 1
    try:
        return gold_target(sql, database)
    except GoldError as error:
        tally.left_out[f"gold: {str(error).split(':')[0]}"] += 1
        return None
