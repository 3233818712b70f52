"""The questions of one database made ready: gold verified in both dialects, values matched, follow-ups added."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from eval.training_data.databases import TrainingDatabase
from eval.training_data.examples import Item
from eval.training_data.follow_ups import follow_up
from eval.training_data.golds import GoldError
from eval.training_data.sources import Question
from eval.training_data.verify import Dialect, Target, gold_target, own_target
from tools.database import Database
from tools.values import ValueMatch, match_values


@dataclass(slots=True)
class Tally:
    """What became of what: `golds` by outcome, `pairs` by "source step dialect", `left_out` by reason."""

    golds: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Count the other's too."""
        for mine, others in ((self.golds, other.golds), (self.pairs, other.pairs), (self.left_out, other.left_out)):
            mine.update(others)


def items(
    questions: Sequence[Question], database: TrainingDatabase, follow_ups: float, rng: Random, tally: Tally
) -> list[Item]:
    """Every question whose gold holds, then with probability `follow_ups` a second question to it."""
    targets: dict[str, Target | str] = {}
    found: list[Item] = []
    for question in questions:
        if question.gold not in targets:
            targets[question.gold] = _target(question.gold, database)
        target = targets[question.gold]
        tally.golds.update(_outcomes(target))
        if isinstance(target, str):
            tally.left_out[f"gold: {target}"] += 1
            continue
        values = _values(database, f"{question.text} {question.evidence}".strip(), target)
        found.append(Item(question.id, question.text, question.evidence, target, values))
        if database.has_rows and rng.random() < follow_ups:
            found += _second(found[-1], database, rng, tally)
    return found


def _target(gold: str, database: TrainingDatabase) -> Target | str:
    """The target, or in one word or two why there is none."""
    try:
        return gold_target(gold, database)
    except GoldError as error:
        return str(error).split(":")[0]


def _outcomes(target: Target | str) -> list[str]:
    if isinstance(target, str):
        return ["all", "left out"]
    by_rows = "bound, no rows to compare" if target.rows is None else "same rows on SQLite"
    return ["all", by_rows, *(["same rows on DuckDB"] if "duckdb" in target.trees else [])]


def _values(database: TrainingDatabase, text: str, target: Target) -> dict[Dialect, tuple[ValueMatch, ...]]:
    if not database.has_rows:
        return {}
    engines: dict[Dialect, Database | None] = {"sqlite": database.sqlite, "duckdb": database.duckdb}
    return {d: match_values(engine, text) for d in target.trees if (engine := engines[d]) is not None}


def _second(first: Item, database: TrainingDatabase, rng: Random, tally: Tally) -> list[Item]:
    """A follow-up of the item, if one applies and runs; a filter that leaves no row says little."""
    made = follow_up(first.target.trees["sqlite"], database.schema, rng)
    if made is None:
        return []
    try:
        target = own_target(made.tree, database)
    except GoldError:
        tally.left_out["follow-up does not run"] += 1
        return []
    if not target.rows:
        tally.left_out["follow-up is empty"] += 1
        return []
    history = ((first.text, first.target),)
    values = _values(database, made.text, target)
    return [Item(f"{first.id}/{made.kind}", made.text, "", target, values, history)]
