"""The data sets that `sqlagent eval` knows, and the selection of their questions: all, the first, or a sample.

`eval.datasets.registry` lists them by name, without the code that reads them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Literal

from eval.datasets.authored import load_authored
from eval.datasets.follow_ups import follow_up
from eval.datasets.gold_databases import run
from eval.datasets.gold_sql import GoldError, normalise, sql_text
from eval.datasets.official import (
    HELD_OUT_DATABASES,
    DatasetError,
    Example,
    Question,
    database_file,
    load_bird,
    load_spider,
    spider_questions,
    syn_questions,
)
from eval.datasets.registry import DATASETS
from eval.scoring.bird import BIRD as BIRD_RULES
from eval.scoring.rules import Rules
from eval.scoring.spider_rules import SPIDER as SPIDER_RULES
from eval.scoring.spider_rules import hardness, plug_in_value
from tools.databases.database import Database
from tools.databases.open_database import open_database

FOLLOW_UPS_ASKED = 100  # second questions that are asked by default
CHOICE = 2  # follow-ups made per follow-up asked, so that every kind is among them
_READERS = {"spider": spider_questions, "spider_syn": syn_questions}

Order = Literal["given", "shuffled"]


@dataclass(frozen=True, slots=True)
class Dataset:
    """How a folder is read, and by which rules its questions are scored."""

    load: Callable[[Path], list[Example]]
    rules: Rules


def load_held_out(data: Path, wording: Literal["spider", "spider_syn"]) -> list[Example]:
    """The questions on the held-out databases. `data` holds spider/ and spider_syn/. Raises DatasetError."""
    return [
        Example(
            id=question.id.split("/")[1],
            db_id=question.db_id,
            question=question.text,
            gold=question.gold,
            difficulty=hardness(question.gold) or "",
            database=database_file(data / "spider" / "database", question.db_id),
        )
        for question in _READERS[wording](data)
        if question.db_id in HELD_OUT_DATABASES
    ]


def load_follow_ups(data: Path, count: int = FOLLOW_UPS_ASKED) -> list[Example]:
    """Second questions on the held-out databases, made like those of the training data; they are always the same.

    `history` is the first question; `difficulty` is the kind of change. They are spread over the databases and, within each,
    over the kinds. Raises DatasetError.
    """
    by_database: dict[str, list[Question]] = defaultdict(list)
    for question in spider_questions(data):
        if question.db_id in HELD_OUT_DATABASES:
            by_database[question.db_id].append(question)
    share = ceil(count / len(by_database)) if by_database else 0
    made = [islice(_made(data, questions), CHOICE * share) for _, questions in sorted(by_database.items())]
    return [example for own in made for example in _spread(list(own), share)][:count]


def _made(data: Path, questions: Sequence[Question]) -> Iterator[Example]:
    """A follow-up for every gold query that has one that returns rows, in random order."""
    db_id, golds = questions[0].db_id, {question.gold: question for question in questions}
    chance, file = Random(f"follow-ups/{db_id}"), database_file(data / "spider" / "database", db_id)
    if file is None:
        return
    database = open_database(file, engine="sqlite")
    try:
        for question in chance.sample(list(golds.values()), len(golds)):
            with suppress(GoldError):
                yield from _second(question, database, file, chance)
    finally:
        database.close()


def _second(question: Question, database: Database, file: Path, chance: Random) -> Iterator[Example]:
    """The question's follow-up, if one applies, returns rows, and is right by Spider's rules. Raises GoldError."""
    first = normalise(question.gold, database.schema())
    made = follow_up(first, database.schema(), chance)
    gold = sql_text(made.tree) if made else ""
    if made is None or plug_in_value(gold) != gold or not run(gold, database).rows:
        return
    number = question.id.split("/")[1]
    history = ((question.text, sql_text(first)),)
    yield Example(f"{number}/{made.kind}", question.db_id, made.text, gold, "", made.kind, file, history)


def _spread(made: Sequence[Example], count: int) -> list[Example]:
    """The first `count`, taking one of each kind in turn."""
    seen, turns = Counter[str](), list[int]()
    for example in made:
        turns.append(seen[example.difficulty])
        seen[example.difficulty] += 1
    ranked = sorted(zip(turns, range(len(made)), strict=True))[:count]
    return [made[place] for _, place in sorted(ranked, key=lambda entry: entry[1])]


SPIDER = Dataset(load_spider, SPIDER_RULES)
BIRD = Dataset(load_bird, BIRD_RULES)
HELD_OUT = Dataset(lambda data: load_held_out(data, "spider"), SPIDER_RULES)
HELD_OUT_SYN = Dataset(lambda data: load_held_out(data, "spider_syn"), SPIDER_RULES)
AUTHORED = Dataset(lambda data: load_authored(data, "choosing"), SPIDER_RULES)
AUTHORED_TRAIN = Dataset(lambda data: load_authored(data, "train"), SPIDER_RULES)
AUTHORED_SEALED = Dataset(lambda data: load_authored(data, "sealed"), SPIDER_RULES)
FOLLOW_UPS = Dataset(load_follow_ups, SPIDER_RULES)


def dataset_named(name: str) -> Dataset:
    """The data set that the table lists under a name. Raises `DatasetError`."""
    if name not in DATASETS:
        raise DatasetError(f"unknown dataset {name}: choose one of {', '.join(DATASETS)}")
    try:
        found: Dataset = resolve_name(DATASETS[name].place)
    except (ImportError, AttributeError, ValueError) as error:
        raise DatasetError(f"the data set {name} cannot be imported from {DATASETS[name].place}: {error}") from error
    return found


def load_dataset(
    name: str, data: Path, *, limit: int | None = None, sample: int | None = None, db: str | None = None
) -> list[Example]:
    """The questions of a dataset in its own order. Raises `DatasetError`.

    `db` keeps only the questions on that database. `sample` keeps that many, chosen by `sampled`, and `limit` that many from
    the start; both keep only questions whose database is present, so that all of them can be executed. Without either, every
    question stays.
    """
    examples = dataset_named(name).load(data)
    if db is not None:
        examples = [example for example in examples if example.db_id == db]
    if sample is not None or limit is not None:
        examples = [example for example in examples if example.executable]
    if sample is not None:
        examples = sampled(examples, sample)
    if not examples:
        raise DatasetError(f"no question left in {data}" + (f" on database {db}" if db else ""))
    return examples[:limit]


def sampled(examples: Sequence[Example], count: int) -> list[Example]:
    """`count` random questions, spread proportionally over the databases, in the order given.

    The choice depends only on the questions, so that every setting is measured on the same ones; a smaller sample is part of
    every larger one.
    """
    chance, places = Random("sample"), dict[str, float]()
    for own in by_database(examples).values():
        shuffled, start = chance.sample(own, len(own)), chance.random()
        places |= {example.id: (rank + start) / len(own) for rank, example in enumerate(shuffled)}
    chosen = set(sorted(places, key=places.__getitem__)[:count])
    return [example for example in examples if example.id in chosen]


def in_order(examples: Sequence[Example], order: Order, seed: int) -> list[Example]:
    """The questions of each database in the given order, or shuffled by the seed, independently for each database."""
    if order == "given":
        return list(examples)
    groups = by_database(examples)
    return [example for name, own in groups.items() for example in Random(f"{seed}/{name}").sample(own, len(own))]


def by_database(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """The questions of each database, in their order."""
    by_database: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_database[example.db_id].append(example)
    return by_database
