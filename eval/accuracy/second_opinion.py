"""Measures the second opinion: how often right SQL is warned of, and how often SQL that was broken is.

    python -m eval.accuracy.second_opinion training/authored            # what the data alone prove
    python -m eval.accuracy.second_opinion training/authored --asked words      # with the question, and no model
    python -m eval.accuracy.second_opinion training/authored --asked reading    # with the question, and the model's own SQL
    python -m eval.accuracy.second_opinion training/authored --asked readings   # with the question, and all of its readings

Right queries are a seeded sample of authored ones. Broken are others of the same part, of which a seeded mutation changed the
rows: a join with a further table that repeats rows, a wrong column in a join, a condition left out, or a trap with NULL. A
broken query counts as named where a warning of the kind that fits its mutation comes, and as warned of where any does.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Literal, get_args

from sqlglot import exp, parse_one

from agent.assemble import ModelChoice, load_model
from agent.assistant import Assistant
from agent.candidates import fingerprint
from agent.second_opinion import with_question
from eval.datasets.authored import Part, load_authored
from eval.datasets.official import Example
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import Limits
from tools.review import Review
from tools.schema import Schema
from tools.sql.join_graph import edges
from tools.sql.scope import column_ref, sources, type_kind

Asked = Literal["", "words", "reading", "readings"]
LIMITS = Limits(deadline_s=5.0)
NAMES = {
    "fan_out": {"multiplied_rows", "repeated_rows"},
    "wrong_column": {"join_off_keys"},
    "dropped_filter": {"unused_value", "other_reading"},
    "null_trap": {"null_comparison", "null_left_out"},
}
"""The kinds of findings that name a mutation."""


def mutations(kind: str, tree: exp.Expr, schema: Schema) -> Iterator[exp.Expr]:
    """The query with one fault of this kind, in every way that there is."""
    yield from _MUTATIONS[kind](tree, schema)


def fan_outs(tree: exp.Expr, schema: Schema) -> Iterator[exp.Expr]:
    """A table that refers to one in FROM is joined, by LEFT JOIN, which repeats rows and loses none."""
    for place, select in enumerate(tree.find_all(exp.Select)):
        for item in sources(select, schema):
            for edge in edges(schema):
                inside = {source.alias.casefold() for source in sources(select, schema)}
                is_new = edge.table.casefold() not in inside
                if item.table is not None and edge.ref_table == item.table.name and is_new:
                    broken = tree.copy()
                    on = exp.and_(
                        *(
                            exp.EQ(
                                this=exp.column(here, edge.table, quoted=True), expression=exp.column(there, item.alias)
                            )
                            for here, there in zip(edge.columns, edge.ref_columns, strict=True)
                        )
                    )
                    joined = exp.table_(edge.table, quoted=True)
                    list(broken.find_all(exp.Select))[place].join(joined, on=on, join_type="left", copy=False)
                    yield broken


def wrong_columns(tree: exp.Expr, schema: Schema) -> Iterator[exp.Expr]:
    """One side of a join's condition is another column of the same table and kind."""
    for place, column in enumerate(tree.find_all(exp.Column)):
        equal, ref = column.parent, column_ref(column, schema)
        if ref is None or not isinstance(equal, exp.EQ):
            continue
        if not isinstance(equal.find_ancestor(exp.Join, exp.Select), exp.Join):
            continue
        table = schema.table(ref[0])
        own = table.column(ref[1]) if table else None
        for other in table.columns if table else ():
            if own and other.name != own.name and type_kind(other.type) == type_kind(own.type):
                broken = tree.copy()
                list(broken.find_all(exp.Column))[place].set("this", exp.to_identifier(other.name, quoted=True))
                yield broken


def dropped_filters(tree: exp.Expr, schema: Schema) -> Iterator[exp.Expr]:
    """A condition of WHERE is left out."""
    for place, where in enumerate(tree.find_all(exp.Where)):
        parts = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
        for left_out in range(len(parts)):
            broken = tree.copy()
            at = list(broken.find_all(exp.Where))[place]
            kept = [part.copy() for number, part in enumerate(parts) if number != left_out]
            at.replace(exp.Where(this=exp.and_(*kept))) if kept else at.pop()
            yield broken


def null_traps(tree: exp.Expr, schema: Schema) -> Iterator[exp.Expr]:
    """`= NULL`, NOT IN for NOT EXISTS over a column with NULLs, COUNT over one, a denied value without IS NULL."""
    for place, node in enumerate(tree.walk()):
        broken = tree.copy()
        here = list(broken.walk())[place]
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            if isinstance(here.parent, exp.Not):
                here.parent.replace(exp.NEQ(this=node.this.copy(), expression=exp.null()))
            else:
                here.replace(exp.EQ(this=node.this.copy(), expression=exp.null()))
            yield broken
        elif isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            select = node.parent_select
            for item in sources(select, schema) if isinstance(select, exp.Select) else ():
                for column in item.table.columns if item.table else ():
                    again = tree.copy()
                    list(again.walk())[place].set("this", exp.column(column.name, item.alias, quoted=True))
                    yield again
        elif isinstance(node, exp.Not) and isinstance(node.this, exp.In) and node.this.args.get("query"):
            inner = here.this.args["query"].find(exp.Select)
            inner.set("where", None)
            yield broken
        elif isinstance(node, exp.Or) and any(isinstance(side, exp.Is) for side in (node.this, node.expression)):
            here.replace((node.expression if isinstance(node.this, exp.Is) else node.this).copy())
            yield broken


_MUTATIONS: dict[str, Callable[[exp.Expr, Schema], Iterator[exp.Expr]]] = {
    "fan_out": fan_outs,
    "wrong_column": wrong_columns,
    "dropped_filter": dropped_filters,
    "null_trap": null_traps,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A query to review; `fault`: its mutation, empty for a right one."""

    example: Example
    sql: str
    fault: str


def cases(examples: list[Example], count: int, seed: int) -> list[Case]:
    """`count` right queries, and a quarter of that for each mutation, all of different questions, by database."""
    random = Random(seed)
    shuffled = random.sample(examples, len(examples))
    found = [Case(example, example.gold, "") for example in shuffled[:count]]
    left = Counter(dict.fromkeys(NAMES, count // 4))
    for example in shuffled[count:]:
        kinds = [kind for kind in left if left[kind]]
        if not kinds:
            break
        for kind in random.sample(kinds, len(kinds)):
            if sql := _broken(example, kind, _opened(example.database), random):
                found.append(Case(example, sql, kind))
                left[kind] -= 1
                break
    return sorted(found, key=lambda case: str(case.example.database))


@cache
def _opened(file: Path) -> Database:
    """The database, which stays open: many questions are on one."""
    return open_database(file, engine="sqlite")


def _broken(example: Example, kind: str, database: Database, random: Random) -> str | None:
    """A mutation that runs and gives other rows, but not none where there were some."""
    right = database.execute(example.gold, LIMITS)
    ways = list(mutations(kind, parse_one(example.gold, dialect="sqlite"), database.schema()))
    for way in random.sample(ways, min(len(ways), 8)):
        outcome = database.execute(way.sql("sqlite"), LIMITS)
        if not isinstance(outcome, type(right)) or fingerprint(outcome, False) == fingerprint(right, False):
            continue
        return way.sql("sqlite")
    return None


def measure(found: list[Case], asked: Asked, out: Path | None) -> dict[str, object]:
    """Review each, and count."""
    model = load_model(ModelChoice()) if asked in ("reading", "readings") else None
    told: dict[str, list[Review]] = defaultdict(list)
    took = []
    for case in found:
        assistant = Assistant(_opened(case.example.database), ModelChoice(), limits=LIMITS, model=model)
        start = perf_counter()
        question, evidence = case.example.question, case.example.evidence
        review = assistant.check(case.sql, *((question, evidence) if model else ()), readings=asked == "readings")
        if asked == "words":
            review = with_question(review, assistant.database, assistant.sql, question, evidence, None)
        took.append(perf_counter() - start)
        told[case.fault].append(review)
        if out:
            line = {"id": case.example.id, "fault": case.fault, "question": case.example.question} | asdict(review)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, default=str, ensure_ascii=False) + "\n")
    right = told.pop("")
    broken = {kind: len(reviews) for kind, reviews in told.items()}
    warned = {kind: sum(each.is_doubtful for each in reviews) for kind, reviews in told.items()}
    named = {kind: sum(_names(each, kind) for each in reviews) for kind, reviews in told.items()}
    false = Counter(each.kind for review in right for each in review.findings if each.severity != "note")
    return {
        "right": len(right),
        "right_warned_of": sum(each.is_doubtful for each in right),
        "by_kind": dict(false),
        "broken": broken,
        "warned_of": warned,
        "named": named,
        "share_warned_of": sum(warned.values()) / sum(broken.values()),
        "share_named": sum(named.values()) / sum(broken.values()),
        "median_s": median(took),
    }


def _names(review: Review, fault: str) -> bool:
    return any(each.kind in NAMES[fault] for each in review.findings if each.severity != "note")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the second opinion on authored queries, right and broken.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--part", choices=("train", "choosing", "sealed"), default="train")
    parser.add_argument("--count", type=int, default=200, help="Right queries, and broken ones.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--asked",
        choices=get_args(Asked),
        default="",
        help="Give the question, too; `reading` and `readings` load the model.",
    )
    parser.add_argument("--out", type=Path, help="JSON Lines for the reviews.")
    given = parser.parse_args()
    part: Part = given.part
    found = cases(load_authored(given.data, part), given.count, given.seed)
    print(json.dumps(measure(found, given.asked, given.out), indent=1))


if __name__ == "__main__":
    main()
