"""Makes second questions of three kinds: one that depends on the first, an unrelated one, and one that contrasts.

If a question depends on the former one, the agent shows that in the prompt. The two other kinds are self-contained, so their
prompt is that of a first question; they are also asked with the former question shown, so that a model learns to ignore a
history that has nothing to do with the question.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from eval.datasets.golds.databases import TrainingDatabase
from eval.datasets.golds.gold_sql import GoldError, real_tables
from eval.datasets.golds.verify import own_target
from eval.datasets.training.examples import Item
from eval.datasets.training.tally import Tally
from eval.datasets.variants.contrasts import EXCHANGES
from eval.datasets.variants.follow_ups import CHANGES, Change, follow_up
from tools.linking.match_values import ValueMatch, match_values


@dataclass(frozen=True, slots=True)
class Others:
    """What second questions are made from; `items` are all questions of the database."""

    items: Sequence[Item]
    database: TrainingDatabase
    tally: Tally


def second(first: Item, others: Others, rng: Random) -> list[Item]:
    """The items of one second question, of a random kind among those that apply here."""
    for kind in rng.sample(list(KINDS), len(KINDS)):
        made = KINDS[kind](first, others, rng)
        if made:
            return [replace(item, kind=kind) for item in made]
    return []


def leaning(first: Item, others: Others, rng: Random) -> list[Item]:
    """A question that cannot be understood without the first."""
    made = _changed(first, "", CHANGES, others, rng)
    return [_after(made, first)] if made else []


def unrelated(first: Item, others: Others, rng: Random) -> list[Item]:
    """Another question of the database that shares no table with the first. The items already hold it without history."""
    tables = _tables(first, others.database)
    disjoint = [other for other in others.items if tables.isdisjoint(_tables(other, others.database))]
    return [_after(replace(rng.choice(disjoint), id=f"{first.id}/unrelated"), first)] if disjoint else []


def contrast(first: Item, others: Others, rng: Random) -> list[Item]:
    """The first question with one name or value replaced, by itself and as a turn after the first."""
    changes = {f"contrast-{kind}": partial(exchange, first.text) for kind, exchange in EXCHANGES.items()}
    made = _changed(first, first.evidence, changes, others, rng)
    return [replace(made, id=f"{made.id}-alone"), _after(made, first)] if made else []


Kind = Callable[[Item, Others, Random], list[Item]]
KINDS: Mapping[str, Kind] = {"leaning": leaning, "unrelated": unrelated, "contrast": contrast}


def _after(item: Item, first: Item) -> Item:
    return replace(item, history=((first.text, first.target),))


def _tables(item: Item, database: TrainingDatabase) -> frozenset[str]:
    return frozenset(name for _, name in real_tables(item.target.tree, database.schema))


def _changed(first: Item, evidence: str, changes: Mapping[str, Change], others: Others, rng: Random) -> Item | None:
    """The item after one of the changes, if one applies, runs and returns rows: an empty result would say little."""
    made = follow_up(first.target.tree, others.database.schema, rng, changes)
    if made is None:
        return None
    try:
        target = own_target(made.tree, others.database)
    except GoldError:
        others.tally.left_out["follow-up does not run"] += 1
        return None
    if not target.rows:
        others.tally.left_out["follow-up is empty"] += 1
        return None
    values = found_values(others.database, f"{made.text} {evidence}".strip())
    return Item(f"{first.id}/{made.kind}", made.text, evidence, target, values)


def found_values(database: TrainingDatabase, text: str) -> tuple[ValueMatch, ...]:
    """The cell values that a text names."""
    return tuple(match_values(database.engine, text)) if database.has_rows else ()
