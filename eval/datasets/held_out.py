"""The questions, and follow-ups made from them, on the training databases that are held out from training."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import ceil
from pathlib import Path
from random import Random
from typing import Literal

from eval.datasets.follow_ups import follow_up
from eval.datasets.gold_databases import run
from eval.datasets.gold_sql import GoldError, normalise, sql_text
from eval.datasets.official import Example, database_file, spider_difficulty
from eval.datasets.sources import HELD_OUT_DATABASES, Question, spider_questions, syn_questions
from eval.scoring.spider_rules import load_schemas, plug_in_value
from tools.databases.database import Database
from tools.databases.open_database import open_database

FOLLOW_UPS = 100
CHOICE = 2  # follow-ups made per follow-up asked, so that every kind is among them
_READERS = {"spider": spider_questions, "spider_syn": syn_questions}


def load_held_out(data: Path, wording: Literal["spider", "spider_syn"]) -> list[Example]:
    """The questions on the held-out databases. `data` holds spider/ and spider_syn/. Raises DatasetError."""
    schemas = load_schemas(data / "spider" / "tables.json")
    return [
        Example(
            id=question.id.split("/")[1],
            db_id=question.db_id,
            question=question.text,
            gold=question.gold,
            difficulty=spider_difficulty(question.gold, schemas.get(question.db_id)),
            database=database_file(data / "spider" / "database", question.db_id),
        )
        for question in _READERS[wording](data)
        if question.db_id in HELD_OUT_DATABASES
    ]


def load_follow_ups(data: Path, count: int = FOLLOW_UPS) -> list[Example]:
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
    seen, turns = Counter[str](), []
    for example in made:
        turns.append(seen[example.difficulty])
        seen[example.difficulty] += 1
    ranked = sorted(zip(turns, range(len(made)), strict=True))[:count]
    return [made[place] for _, place in sorted(ranked, key=lambda entry: entry[1])]
