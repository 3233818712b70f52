"""Prepares the questions of one database: verifies gold SQL, matches values, adds second questions."""

from collections.abc import Iterator, Sequence
from random import Random

from eval.datasets.golds.databases import TrainingDatabase
from eval.datasets.golds.gold_sql import GoldError
from eval.datasets.golds.sources import Question
from eval.datasets.golds.verify import Target, gold_target
from eval.datasets.training.examples import Item
from eval.datasets.training.second_questions import Others, found_values, second
from eval.datasets.training.tally import Tally


def items(
    questions: Sequence[Question], database: TrainingDatabase, follow_ups: float, rng: Random, tally: Tally
) -> list[Item]:
    """Every question whose gold SQL is verified, each followed, with probability `follow_ups`, by a second question."""
    others = Others(list(_held(questions, database, tally)), database, tally)
    found: list[Item] = []
    for item in others.items:
        found.append(item)
        if database.has_rows and rng.random() < follow_ups:
            found += second(item, others, rng)
    return found


def _held(questions: Sequence[Question], database: TrainingDatabase, tally: Tally) -> Iterator[Item]:
    """Every question whose gold SQL is verified."""
    targets: dict[str, Target | str] = {}
    for question in questions:
        if question.gold not in targets:
            targets[question.gold] = _target(question.gold, database)
        target = targets[question.gold]
        tally.golds.update(_outcomes(target))
        if isinstance(target, str):
            tally.left_out[f"gold: {target}"] += 1
            continue
        values = found_values(database, f"{question.text} {question.evidence}".strip())
        yield Item(question.id, question.text, question.evidence, target, values)


def _target(gold: str, database: TrainingDatabase) -> Target | str:
    """The target, or in a word or two why there is none."""
    try:
        return gold_target(gold, database)
    except GoldError as error:
        return str(error).split(":")[0]


def _outcomes(target: Target | str) -> list[str]:
    if isinstance(target, str):
        return ["all", "left out"]
    by_rows = "bound, no rows to compare" if target.rows is None else "same rows"
    return ["all", by_rows]
