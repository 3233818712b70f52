"""Repairs a query by rules before the model is asked again. It does not guess, and keeps only repairs that run."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from tools.databases.database import Database
from tools.linking.match_values import ValueMatch
from tools.repair.literals.add_genders import add_genders
from tools.repair.literals.compare_nulls import compare_nulls
from tools.repair.literals.compare_years import compare_years
from tools.repair.literals.convert_units import convert_units
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
from tools.repair.sum_counted import sum_counted
from tools.result import Limits, QueryError
from tools.schema import Schema

_BY_QUESTION = {
    "direction": set_direction,
    "units": convert_units,
    "bounds": set_bounds,
    "wildcards": set_wildcards,
    "absent": ask_absence,
    "rows": count_rows,
    "minmax": set_extreme,
    "alphabetical": sort_words,
    "extremes": show_extremes,
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
    """The query, and the error that is left, if any. Names are repaired by rules and spelled as the schema does, misplaced
    literals are moved, two values for one column are separated, and a comparison with NULL becomes a test for it. `mends`, each
    by what the `question` says: `direction` of the order, `units` of numbers, `dates` that are compared with years, `bounds`
    of numbers, `wildcards` of LIKE, what is `counted`, `genders`, what is `absent`, `rows` that are counted, the extreme of
    `minmax`, the key of an `alphabetical` order, both `extremes` of a column, and the columns that are `listed`. `firsts`: a
    date that is no date goes where the first or the last is asked for. `picks`: ANY_VALUE goes where it makes one row of all.
    `grouped`: groups fix what is shown beside aggregates.
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
    rules += [unwrap_picks] if "picks" in mends else []
    rules += [set_groups] if "grouped" in mends else []
    rules += [partial(rule, question=question, values=values) for name, rule in _BY_VALUES.items() if name in mends]
    rules += [partial(add_genders, values=values)] if "genders" in mends else []
    rules += [partial(rule, question=question) for name, rule in _BY_QUESTION.items() if name in mends]
    for better in (*rules, spell_names):
        fixed = _running(database, better(fixed, schema), limits) or fixed
    return fixed, None


def _running(database: Database, sql: str | None, limits: Limits) -> str | None:
    """The query if it would run, otherwise None."""
    return sql if sql is not None and database.explain(sql, limits) is None else None
