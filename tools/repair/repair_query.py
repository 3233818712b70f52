"""Repairs a query by rules before the model is asked again. It does not guess, and keeps only repairs that run."""

from collections.abc import Sequence
from functools import partial

from tools.databases.database import Database
from tools.linking.match_values import ValueMatch
from tools.repair.move_literals import move_literals
from tools.repair.repair_names import repair
from tools.repair.separate_values import separate_values
from tools.repair.set_direction import set_direction
from tools.result import Limits, QueryError


def repair_query(
    sql: str, database: Database, values: Sequence[ValueMatch], limits: Limits, question: str = ""
) -> tuple[str, QueryError | None]:
    """The query, and the error that is left, if any. Names are repaired by rules, misplaced literals are moved, and two values
    for one column are separated. Given the question, the order is set to what it says.
    """
    error = database.explain(sql, limits)
    if error is not None and error.kind == "refused":
        return sql, error
    schema = database.schema()
    fixed = sql if error is None else _running(database, repair(sql, error, schema), limits)
    if fixed is None:
        return sql, error
    for better in (partial(move_literals, values=values), separate_values, partial(set_direction, question=question)):
        fixed = _running(database, better(fixed, schema), limits) or fixed
    return fixed, None


def _running(database: Database, sql: str | None, limits: Limits) -> str | None:
    """The query if it would run, otherwise None."""
    return sql if sql is not None and database.explain(sql, limits) is None else None
