"""Repairs a query by rules before the model is asked again. It does not guess, and keeps only repairs that run."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from tools.databases.database import Database
from tools.linking.match_values import ValueMatch
from tools.repair.columns.compare_sets import compare_sets
from tools.repair.columns.count_flags import count_flags
from tools.repair.columns.measure_said import measure_said
from tools.repair.columns.skip_nulls import skip_nulls
from tools.repair.columns.sum_counted import sum_counted
from tools.repair.columns.sum_quantities import sum_quantities
from tools.repair.columns.take_dates import take_dates
from tools.repair.literals.add_genders import add_genders
from tools.repair.literals.compare_nulls import compare_nulls
from tools.repair.literals.compare_years import compare_years
from tools.repair.literals.convert_units import convert_units
from tools.repair.literals.fit_types import fit_types
from tools.repair.literals.move_literals import move_literals
from tools.repair.literals.separate_values import separate_values
from tools.repair.literals.set_bounds import set_bounds
from tools.repair.literals.set_wildcards import set_wildcards
from tools.repair.repair_names import repair
from tools.repair.shape.ask_absence import ask_absence
from tools.repair.shape.count_rows import count_rows
from tools.repair.shape.list_columns import list_columns
from tools.repair.shape.set_direction import set_direction
from tools.repair.shape.set_extreme import set_extreme
from tools.repair.shape.set_groups import set_groups
from tools.repair.shape.show_extremes import show_extremes
from tools.repair.shape.sort_words import sort_words
from tools.repair.shape.take_first import take_first
from tools.repair.shape.unwrap_picks import unwrap_picks
from tools.repair.spell_names import spell_names
from tools.result import Limits, QueryError, Result
from tools.schema import Schema

_LOOK_S = 2.0  # of a query that a rule asks

_BY_SCHEMA = {"picks": unwrap_picks, "grouped": set_groups, "alike": compare_sets}
_BY_QUESTION = {
    "typed": fit_types,
    "direction": set_direction,
    "recent": take_dates,
    "bounds": set_bounds,
    "units": convert_units,
    "wildcards": set_wildcards,
    "absent": ask_absence,
    "rows": count_rows,
    "minmax": set_extreme,
    "alphabetical": sort_words,
    "extremes": show_extremes,
    "flags": count_flags,
    "measured": measure_said,
    "sold": sum_quantities,
}
_BY_VALUES = {
    "counted": sum_counted,
    "listed": list_columns,
}


def repair_query(
    sql: str,
    database: Database,
    values: Sequence[ValueMatch],
    limits: Limits,
    question: str = "",
    mends: Collection[str] = (),
) -> tuple[str, QueryError | None]:
    """The query, and the error that is left, if any.

    Names are always repaired and spelled as the schema does, misplaced literals are moved, two values for one column are
    separated, and a comparison with NULL becomes a test for it. `mends` names the other rules; most go by the words of the
    `question`. What each is for is said beside `agent.graph.toolbox.MENDS`.
    """
    schema = database.schema()
    error = database.explain(sql, limits)
    if error is not None and error.kind == "refused":
        return sql, error
    if "dates" in mends and (dated := _running(database, compare_years(sql, schema), limits)):
        sql, error = dated, None
    if "firsts" in mends and (first := _running(database, take_first(sql, schema, question), limits)):
        sql, error = first, None
    fixed = sql if error is None else _running(database, repair(sql, error, schema), limits)
    if fixed is None:
        return sql, error
    rules: list[Callable[[str, Schema], str | None]] = [partial(move_literals, values=values)]
    rules += [separate_values, compare_nulls]
    rules += [rule for name, rule in _BY_SCHEMA.items() if name in mends]
    rules += [partial(skip_nulls, has_rows=partial(_has_rows, database, limits))] if "nulls" in mends else []
    rules += [partial(rule, question=question, values=values) for name, rule in _BY_VALUES.items() if name in mends]
    rules += [partial(add_genders, values=values)] if "genders" in mends else []
    rules += [partial(rule, question=question) for name, rule in _BY_QUESTION.items() if name in mends]
    for better in (*rules, spell_names):
        fixed = _running(database, better(fixed, schema), limits) or fixed
    return fixed, None


def _running(database: Database, sql: str | None, limits: Limits) -> str | None:
    """The query if it would run, otherwise None."""
    return sql if sql is not None and database.explain(sql, limits) is None else None


def _has_rows(database: Database, limits: Limits, sql: str) -> bool:
    """Whether a query has rows; not if it cannot run."""
    result = database.execute(sql, replace(limits, deadline_s=min(limits.deadline_s, _LOOK_S)))
    return isinstance(result, Result) and bool(result.rows)
