"""Verifies SQL by executing it and comparing its rows with those of the gold query. Only here is SQL run twice."""

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from eval.datasets.golds.databases import TrainingDatabase
from eval.datasets.golds.gold_sql import GoldError, normalise, parse, sql_text
from eval.scoring.spider.execution_match import order_matters, spider_match
from tools.databases.database import Database
from tools.result import Limits, Result
from tools.sql.dialects.sqlite_to_duckdb import sqlite_to_duckdb

LIMITS = Limits(deadline_s=10.0, max_rows=50_000)
Dialect = Literal["sqlite", "duckdb"]
DIALECTS: tuple[Dialect, ...] = ("sqlite", "duckdb")


@dataclass(frozen=True, slots=True)
class Target:
    """A query in the style, by dialect. `rows`: how many SQLite returned; None if the database holds no rows at all."""

    trees: dict[Dialect, exp.Query]
    rows: int | None


def gold_target(gold: str, database: TrainingDatabase) -> Target:
    """The gold query in the style, verified to return the same rows in the same order or, on an empty database, to bind.

    Raises GoldError, whose text begins with the kind of failure: `gold fails`, `not normalised`, `rows differ`.
    """
    tree = normalise(gold, database.schema)
    if not database.has_rows:
        return Target({"sqlite": bound(tree, database)}, None)
    wanted, given = run(gold, database.sqlite, "gold fails"), run(sql_text(tree, "sqlite"), database.sqlite)
    if wanted.rows != given.rows:
        raise GoldError("rows differ after normalising")
    return _with_duckdb(tree, given, database)


def own_target(tree: exp.Query, database: TrainingDatabase) -> Target:
    """A query that this program generated; it must run. Raises GoldError."""
    if not database.has_rows:
        return Target({"sqlite": bound(tree, database)}, None)
    return _with_duckdb(tree, run(sql_text(tree, "sqlite"), database.sqlite), database)


def bound(tree: exp.Query, database: TrainingDatabase) -> exp.Query:
    """The tree, if SQLite would run it. Raises GoldError."""
    error = database.sqlite.explain(sql_text(tree, "sqlite"))
    if error is not None:
        raise GoldError(f"does not bind: {error.message}")
    return tree


def run(sql: str, database: Database, failure: str = "does not run") -> Result:
    """The complete result. Raises GoldError."""
    result = database.execute(sql, LIMITS)
    if not isinstance(result, Result):
        raise GoldError(f"{failure}: {result.message}")
    if result.truncated:
        raise GoldError(f"{failure}: more than {LIMITS.max_rows} rows")
    return result


def _with_duckdb(tree: exp.Query, result: Result, database: TrainingDatabase) -> Target:
    try:
        return Target({"sqlite": tree, "duckdb": _rewritten(tree, result, database)}, len(result.rows))
    except (GoldError, ValueError):
        return Target({"sqlite": tree}, len(result.rows))


def _rewritten(tree: exp.Query, result: Result, database: TrainingDatabase) -> exp.Query:
    assert database.duckdb is not None
    gold = sql_text(tree, "sqlite")
    rewritten = parse(sqlite_to_duckdb(gold, database.duckdb.schema()), "duckdb")
    given = run(sql_text(rewritten, "duckdb"), database.duckdb)
    if not spider_match(result.rows, given.rows, order_matters(gold)):
        raise GoldError("DuckDB gives other rows")
    return rewritten
