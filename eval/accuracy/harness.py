"""Checks of the harness: gold against itself, and the recall of schema linking.

Linking is measured without a model. The prompt's schema is cut by `agent.ask_model.shown`, as in a conversation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlglot import exp

from agent.ask_model import MOST_LINKS, shown
from agent.prompts.compact import likely
from eval.accuracy.run import task_for
from eval.datasets.gold_databases import open_training
from eval.datasets.gold_sql import GoldError, normalise, place_of, plan_answer, real_tables
from eval.datasets.official import Example, load_dev, load_questions, load_spider, without_dev
from eval.datasets.selection import load_held_out, sampled
from eval.scoring.referee_pool import Worker
from eval.scoring.rules import Rules
from tools.databases.open_database import open_database
from tools.linking.link_schema import Link, link
from tools.linking.match_values import ValueMatch, match_values
from tools.schema import ColumnRef, Schema


@dataclass(frozen=True, slots=True)
class GoldCheck:
    """The outcome: of `n` questions, `executed` have a gold query that runs, and `agreed` of these are judged right.

    `unrunnable`: (id, db_id, reason) of the others; `disagreed`: ids of gold queries that their own rules judge wrong.
    """

    n: int
    executed: int
    agreed: int
    unrunnable: tuple[tuple[str, str, str], ...]
    disagreed: tuple[str, ...]


def check_gold(examples: Sequence[Example], rules: Rules, *, timeout_s: float = 30.0) -> GoldCheck:
    """Score every gold query against itself on SQLite; the result says which could not be run and why."""
    runnable = [example for example in examples if example.executable]
    with closing(Worker()) as worker:
        judged = [(each, worker.judge(task_for(each, each.gold, rules, "sqlite", timeout_s))) for each in runnable]
    failed = {example.id: verdict.gold_error for example, verdict in judged if verdict.gold_error}
    reasons = {example.id: "the database is not there" for example in examples if not example.executable} | failed
    return GoldCheck(
        n=len(examples),
        executed=len(runnable) - len(failed),
        agreed=sum(verdict.correct for _, verdict in judged),
        unrunnable=tuple((e.id, e.db_id, reasons[e.id]) for e in examples if e.id in reasons),
        disagreed=tuple(e.id for e, verdict in judged if not verdict.correct and not verdict.gold_error),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A question's schema and links, and what its gold SQL needs."""

    schema: Schema
    links: tuple[Link, ...]
    tables: frozenset[str]
    columns: frozenset[ColumnRef]
    planned: frozenset[ColumnRef]  # the columns that its plan names


@dataclass(frozen=True, slots=True)
class Row:
    """Of `n` questions, `cut` have a schema of more than `budget` columns, and `losing` lack a table or column that they need.
    The recalls are over all tables, and over all columns, that the `n` questions need. `hinted`: the columns that the prompts'
    hints name, per question; `hint_precision` of them are in the gold plan, and they are `hint_recall` of its columns.
    """

    dataset: str
    n: int
    budget: int
    cut: int
    table_recall: float
    column_recall: float
    losing: int
    hinted: float
    hint_precision: float
    hint_recall: float


def measure(dataset: str, cases: Sequence[Case], budget: int) -> Row:
    """The table's row for a data set and a budget."""
    prompts = [shown(case.schema, case.links, budget) for case in cases]
    tables = columns = losing = 0
    for case, prompt in zip(cases, prompts, strict=True):
        kept_tables = sum(prompt.table(name) is not None for name in case.tables)
        kept_columns = sum(prompt.table(name) is not None for name, _ in case.columns)  # a table is shown whole
        tables, columns = tables + kept_tables, columns + kept_columns
        losing += kept_tables < len(case.tables)
    cut = sum(len(case.schema.tables) > len(prompt.tables) for case, prompt in zip(cases, prompts, strict=True))
    of_tables, of_columns = sum(len(case.tables) for case in cases), sum(len(case.columns) for case in cases)
    hints = [_hinted(case, prompt) for case, prompt in zip(cases, prompts, strict=True)]
    named, right = sum(map(len, hints)), sum(len(h & case.planned) for h, case in zip(hints, cases, strict=True))
    return Row(
        dataset,
        len(cases),
        budget,
        cut,
        _share(tables, of_tables),
        _share(columns, of_columns),
        losing,
        round(named / max(len(cases), 1), 2),
        _share(right, named),
        _share(right, sum(len(case.planned) for case in cases)),
    )


def _hinted(case: Case, prompt: Schema) -> set[ColumnRef]:
    """The columns that the hints of the prompt name."""
    found = likely(case.links[:MOST_LINKS], prompt)
    return {(table, column) for table, columns in found.items() for column in columns}


def needed(gold: str, schema: Schema) -> tuple[frozenset[str], frozenset[ColumnRef]]:
    """The tables and columns of SQLite's SQL, as the schema spells them. Raises GoldError."""
    tree = normalise(gold, schema)
    places = (place_of(column, schema) for column in tree.find_all(exp.Column))
    columns = frozenset(place for place in places if place is not None)
    return frozenset(name for _, name in real_tables(tree, schema)) | {table for table, _ in columns}, columns


def spider_dev(data: Path, sample: int | None) -> Iterator[Case]:
    """Spider's dev questions whose database is present. `data` holds spider/. Raises DatasetError."""
    return _on_files(_chosen([each for each in load_spider(data / "spider") if each.executable], sample))


def held_out(data: Path, sample: int | None) -> Iterator[Case]:
    """The questions on held-out databases. Raises DatasetError."""
    return _on_files(_chosen(load_held_out(data, "spider"), sample))


def bird_train(data: Path, sample: int | None) -> Iterator[Case]:
    """BIRD's training questions, on schemas without rows, so that no value can be matched. Raises DatasetError."""
    questions, _ = without_dev(load_questions(data), load_dev(data))
    own = [question for question in questions if question.source == "bird"]
    for db_id, asked in _by_database(_chosen([Example(q.id, q.db_id, q.text, q.gold) for q in own], sample)):
        with TemporaryDirectory() as scratch:
            database = open_training(data, [q for q in own if q.db_id == db_id], Path(scratch))
            database.close()
        for example in asked:
            yield from _case(database.schema, example, ())


CASES: Mapping[str, Callable[[Path, int | None], Iterator[Case]]] = {
    "spider dev": spider_dev,
    "held out": held_out,
    "bird train": bird_train,
}


def _chosen(examples: Sequence[Example], sample: int | None) -> Sequence[Example]:
    return examples if sample is None else sampled(examples, sample)


def _by_database(examples: Iterable[Example]) -> Iterator[tuple[str, Iterator[Example]]]:
    return groupby(sorted(examples, key=lambda example: example.db_id), key=lambda example: example.db_id)


def _on_files(examples: Iterable[Example]) -> Iterator[Case]:
    for _, asked in _by_database(examples):
        own = list(asked)
        assert own[0].database is not None
        database = open_database(own[0].database, engine="sqlite")
        try:
            for example in own:
                yield from _case(database.schema(), example, match_values(database, example.question))
        finally:
            database.close()


def _case(schema: Schema, example: Example, values: Sequence[ValueMatch]) -> Iterator[Case]:
    """The case, unless its gold SQL cannot be read."""
    with suppress(GoldError):
        tables, columns = needed(example.gold, schema)
        plan = plan_answer(normalise(example.gold, schema), schema)
        planned = frozenset((table.name, column) for table in plan.tables for column in table.columns)
        yield Case(schema, link(schema, example.question, values), tables, columns, planned)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 1.0
