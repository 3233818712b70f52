"""Items from templates: each question's SQL is run in both engines, and kept if its result says something."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from eval.datasets.golds.databases import TrainingDatabase
from eval.datasets.golds.gold_sql import GoldError, normalise, sql_text
from eval.datasets.golds.verify import Target, own_target, run
from eval.datasets.templates.amounts import amounts
from eval.datasets.templates.asked import Asked, Author, Template, q
from eval.datasets.templates.blanks import blanks
from eval.datasets.templates.conditions import conditions
from eval.datasets.templates.labels import Labels
from eval.datasets.templates.sets import sets
from eval.datasets.templates.superlatives import superlatives
from eval.datasets.templates.tables import tables
from eval.datasets.templates.times import times
from eval.datasets.training.examples import Item
from eval.datasets.training.second_questions import found_values
from eval.datasets.training.tally import Tally

KINDS: Mapping[str, Callable[[Author], Template]] = {
    "tables": tables,
    "sets": sets,
    "superlatives": superlatives,
    "conditions": conditions,
    "blanks": blanks,
    "amounts": amounts,
    "times": times,
}
"""Templates by the kind of mistake that they are against, or by what they ask for."""


def templated(labels: Labels, shares: Mapping[str, float], rng: Random, tally: Tally) -> list[Item]:
    """A share of what each kind's templates make of the database. Without rows there are only those that need none."""
    bound = ("tables", "sets", "blanks", "amounts")
    kinds = [kind for kind in shares if shares[kind] and (labels.database.has_rows or kind in bound)]
    return [item for kind in kinds for item in _of(kind, labels, shares[kind], rng, tally)]


def _of(kind: str, labels: Labels, share: float, rng: Random, tally: Tally) -> Iterator[Item]:
    said = set[str]()
    for number, asked in enumerate(KINDS[kind](Author(labels, rng))):
        if rng.random() >= share or asked.text in said:
            continue
        said.add(asked.text)
        tally.golds["all"] += 1
        try:
            target = telling(asked, labels.database)
        except GoldError as error:
            tally.left_out[f"{kind}: {str(error).split(':')[0]}"] += 1
            continue
        values = found_values(labels.database, asked.text)
        yield Item(f"{kind}/{labels.database.db_id}/{number}", asked.text, "", target, values)


def telling(asked: Asked, database: TrainingDatabase) -> Target:
    """The target. Raises GoldError if the result is empty, zero, or every row where only some are asked for."""
    tree = normalise(asked.sql, database.schema)
    if not database.has_rows:
        return own_target(tree, database)
    rows = run(sql_text(tree), database.engine).rows
    if not asked.may_be_empty and (not rows or _says_nothing(rows)):
        raise GoldError("the result is empty")
    if asked.below:
        (whole,) = run(f"SELECT COUNT(*) FROM {q(asked.below)}", database.engine).rows[0]
        if len(rows) >= int(whole):
            raise GoldError("the result is everything")
    return own_target(tree, database)


def _says_nothing(rows: Sequence[Sequence[object]]) -> bool:
    return len(rows) == 1 and all(cell in (None, 0, "") for cell in rows[0])
