"""Runs SQL candidates and compares what they return, in the database's dialect or the model's.

Runs several SQL candidates and chooses among them by what they return.

The dialect in which the model writes. Where that is not the database's, its SQL is translated before it is checked, and
prompts show the conversation's SQL as the model would have written it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

from agent.context import AgentContext
from agent.state import DrawnPlan, Reading
from tools.result import QueryError, Result
from tools.sql.from_sqlite import from_sqlite, in_sqlite
from tools.sql.scope import parse_or_nothing
from tools.sql.to_sqlite import bare_names, to_sqlite

Outcome = Result | QueryError
OUT_OF_TIME = QueryError("timeout", "the candidates before it used up the time")


@dataclass(frozen=True, slots=True)
class Candidate:
    sql: str
    outcome: Outcome
    log_likelihood: float = 0.0
    drawn: int = 1  # how many samples gave this plan
    votes: int = 0  # how many samples have the same result, including its own
    plan: str = ""


def drawn_plans(texts: Iterable[str], log_likelihoods: Iterable[float], reading: Reading) -> list[DrawnPlan]:
    """The distinct plans among the samples, in order of first appearance."""
    plans: dict[str, DrawnPlan] = {}
    for text, log_likelihood in zip(texts, log_likelihoods, strict=True):
        plan = plans.setdefault(text, DrawnPlan(text=text, drawn=0, log_likelihood=log_likelihood, reading=reading))
        plan["drawn"] += 1
    return list(plans.values())


def outcomes(
    checked: Sequence[tuple[str, QueryError | None]], run: Callable[[str, float], Outcome], deadline_s: float
) -> list[Outcome]:
    """What each checked statement returns; those with an error are not run, and equal ones run once.

    `run` takes a statement and its deadline in seconds. All together have `deadline_s`. A statement that others follow may
    take half of what is left, so that a slow one does not keep a quick one from being run.
    """
    end, done = perf_counter() + deadline_s, {sql: error for sql, error in checked if error is not None}
    waiting = list(dict.fromkeys(sql for sql, error in checked if error is None))
    ran: dict[str, Outcome] = {}
    for place, sql in enumerate(waiting, 1):
        left_s = end - perf_counter()
        share_s = left_s if place == len(waiting) else left_s / 2
        ran[sql] = run(sql, share_s) if left_s > 0 else OUT_OF_TIME
    return [(done | ran)[sql] for sql, _ in checked]


def elect(candidates: Sequence[Candidate], dialect: str) -> list[Candidate]:
    """The candidates, best first: results with rows before empty ones, then by votes, likelihood and order; failures last."""
    prints = [fingerprint(each.outcome, is_ordered(each.sql, dialect)) for each in candidates]
    counts = Counter[object]()
    for each, known in zip(candidates, prints, strict=True):
        counts[known] += each.drawn
    voted = [replace(each, votes=counts[known]) for each, known in zip(candidates, prints, strict=True)]
    return sorted(voted, key=_rank)


def _rank(candidate: Candidate) -> tuple[bool, bool, int, float]:
    failed = isinstance(candidate.outcome, QueryError)
    empty = isinstance(candidate.outcome, Result) and not candidate.outcome.rows
    return failed, empty, -candidate.votes, -candidate.log_likelihood


def fingerprint(outcome: Outcome, ordered: bool) -> object:
    """A value that is equal for results with the same rows, whatever the order of the columns and the kinds of number, and in
    any order unless they are `ordered`. A result that the row cap cut never equals a whole one.

    Sorted rows that tie may come in another order, and then differ. Rows are compared as bags of cells, and columns too; in
    rare cases, where columns hold the same cells, that takes different results for equal.
    """
    if isinstance(outcome, QueryError):
        return ("error", outcome.kind)
    cells = [[_cell(each) for each in row] for row in outcome.rows]
    rows = [tuple(sorted(row)) for row in cells]
    columns = sorted(tuple(sorted(column)) for column in zip(*cells, strict=True))
    in_order = tuple(rows) if ordered and len(rows) > 1 else frozenset(Counter(rows).items())
    return (len(outcome.columns), outcome.truncated, tuple(columns), in_order)


def same_rows(one: Result, other: Result) -> bool:
    """Whether two results have the same rows, in any order, where one may show further columns (compared as `fingerprint`
    does)."""
    if fingerprint(one, ordered=False) == fingerprint(other, ordered=False):
        return True
    columns = [
        Counter(tuple(sorted(map(_cell, column))) for column in zip(*each.rows, strict=True))
        for each in sorted((one, other), key=lambda each: len(each.columns))
    ]
    return bool(one.rows) and len(one.rows) == len(other.rows) and not columns[0] - columns[1]


def _cell(value: Any) -> str:
    """The value as text that starts with its kind: 2, 2.0 and 2.00 are one number, and the text 2 is none."""
    if isinstance(value, bool | int | float | Decimal) and isfinite(value):
        return f"n{int(value)}" if value == int(value) else f"n{float(value):.10g}"
    if isinstance(value, datetime | date):
        return f"t{value.isoformat(' ') if isinstance(value, datetime) else value.isoformat()}"
    return f"t{value}" if isinstance(value, str) else f"o{value!r}"


def is_ordered(sql: str, dialect: str) -> bool:
    """Whether the statement sorts its rows."""
    trees = parse_or_nothing(sql, dialect)
    return len(trees) == 1 and isinstance(trees[0], exp.Query) and trees[0].args.get("order") is not None


def same_sql(one: str, other: str, dialect: str) -> bool:
    """Whether two statements differ only in layout, in the case of keywords and names, and in comments."""
    return _normal(one, dialect) == _normal(other, dialect)


def _normal(sql: str, dialect: str) -> str:
    try:
        return normalize_identifiers(parse_one(sql, dialect=dialect), dialect).sql(dialect, comments=False)
    except Exception:  # whatever sqlglot may raise: its writer fails with AttributeError at DuckDB's DATETIME(x)
        return " ".join(sql.split()).rstrip(";").lower()


def model_dialect(toolbox: AgentContext) -> str:
    """The dialect that prompts name and grammars allow."""
    return toolbox.profile.dialect(toolbox.database.dialect)


def translated(toolbox: AgentContext, sql: str) -> str:
    """The model's SQL in the database's dialect. It stays as it is where it means the same there, and where it cannot be read,
    so that checking says why."""
    dialect = toolbox.database.dialect
    if model_dialect(toolbox) == dialect:
        is_sqlite = dialect == "sqlite"
        return (
            toolbox.optional("translate", partial(in_sqlite, sql, toolbox.database.schema()), sql) if is_sqlite else sql
        )

    def found() -> str:
        try:
            translation = from_sqlite(sql, toolbox.database.schema(), exactly=False)
        except ValueError:
            return sql
        return sql if same_sql(sql, translation, dialect) else translation

    return toolbox.optional("translate", found, sql)


def as_written(toolbox: AgentContext, sql: str) -> str:
    """SQL of the database in the model's dialect, with the names that the prompt shows."""
    schema = toolbox.database.schema()
    back = bare_names if model_dialect(toolbox) == schema.dialect else to_sqlite
    return toolbox.optional("translate", partial(back, sql, schema), sql)
