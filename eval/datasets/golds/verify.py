"""Verifies SQL by executing it and comparing its rows with those of the gold query. Only here is SQL run twice."""

from dataclasses import dataclass

from sqlglot import exp

from eval.datasets.golds.databases import TrainingDatabase
from eval.datasets.golds.gold_sql import GoldError, normalise, sql_text
from tools.databases.database import Database
from tools.result import Limits, Result

LIMITS = Limits(deadline_s=10.0, max_rows=50_000)


@dataclass(frozen=True, slots=True)
class Target:
    """A query in the style. `rows`: how many it returned; None if the database holds no rows at all."""

    tree: exp.Query
    rows: int | None


def gold_target(gold: str, database: TrainingDatabase) -> Target:
    """The gold query in the style, verified to return the same rows in the same order or, on an empty database, to bind.

    Raises GoldError, whose text begins with the kind of failure: `gold fails`, `not normalised`, `rows differ`.
    """
    tree = normalise(gold, database.schema)
    if not database.has_rows:
        return Target(bound(tree, database), None)
    wanted, given = run(gold, database.engine, "gold fails"), run(sql_text(tree), database.engine)
    if wanted.rows != given.rows:
        raise GoldError("rows differ after normalising")
    return Target(tree, len(given.rows))


def own_target(tree: exp.Query, database: TrainingDatabase) -> Target:
    """A query that this program generated; it must run. Raises GoldError."""
    if not database.has_rows:
        return Target(bound(tree, database), None)
    return Target(tree, len(run(sql_text(tree), database.engine).rows))


def bound(tree: exp.Query, database: TrainingDatabase) -> exp.Query:
    """The tree, if SQLite would run it. Raises GoldError."""
    error = database.engine.explain(sql_text(tree))
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
