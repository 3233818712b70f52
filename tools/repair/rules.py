"""The rules, in one table: what question, schema and types show about plans and SQL that the model gets wrong.

A rule gets what its stage is about, and returns it changed, or None where it has nothing to change:

- `values`: the cell values found in the question. SQL that compares with one that is dropped is planned again.
- `constraints`: what the grammar demands of plan and SQL while the model writes them.
- `sql`: the tree of a written statement. The tree is the rule's own.

Rules of a stage run in the table's order. Two rows of one name are one rule that acts in two stages. Training replaces rules:
a mistake that the model makes is a matter of its data first.

What a question's words demand of a plan and of the SQL after it, for a grammar that binds the model to it.

Each rule of `tools.repair.rules` gets the constraints so far and returns those with its own, or None if it has none.

Repairs a query by rules before the model is asked again. It does not guess, and keeps only repairs that run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.databases.database import Database
from tools.linking.mentions import Places, counted_columns, drop_unmeant, mentioned_columns, mentioned_roles, unshared
from tools.linking.question_context import QuestionContext
from tools.repair.clauses import set_direction, set_groups, sum_counted
from tools.repair.literals import (
    add_genders,
    compare_nulls,
    compare_years,
    move_literals,
    separate_values,
    set_bounds,
    set_wildcards,
)
from tools.repair.names import repair_names, spell_names
from tools.result import Limits, QueryError
from tools.schema import Schema
from tools.sql.join_graph import identifiers
from tools.sql.scope import parse_or_nothing

_identifiers = lru_cache(maxsize=16)(identifiers)


@dataclass(frozen=True, slots=True)
class QuestionConstraints:
    """All names are in lower case."""

    sure: tuple[Places, ...] = ()  # of each set the plan names one column or, with "" for a column, one table
    shadowed: Places = frozenset()  # columns that the plan may not name
    roles: Places = frozenset()  # foreign keys whose roles were said: joins follow them
    identifiers: Places = (
        frozenset()
    )  # columns that are not added up, nor compared by `<` or tested unless they were said
    dated: bool = False  # whether date columns are compared with texts only if the question has digits

    def of_plans(self) -> "QuestionConstraints":
        """Those that the grammar of plans reads."""
        return QuestionConstraints(sure=self.sure, shadowed=self.shadowed)

    def of_sql(self) -> "QuestionConstraints":
        """Those that the grammar of SQL reads."""
        return replace(self, sure=(), shadowed=frozenset())

    def requiring(self, places: Iterable[Places]) -> "QuestionConstraints":
        """These, and that the plan has something of each set."""
        return replace(self, sure=tuple(dict.fromkeys((*self.sure, *places))))


def values_required(schema: Schema, context: QuestionContext) -> QuestionConstraints:
    """The constraints before any rule: the plan has a column for each value that the question surely names."""
    every = frozenset((table.name.lower(), column.name.lower()) for table in schema.tables for column in table.columns)
    return QuestionConstraints().requiring(filter(None, (places & every for places in context.sure())))


def require_named(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """The plan names the columns whose names the question says in full, and none that they shadow."""
    found = mentioned_columns(schema, context.question, context.values)
    if not (found.named or found.shadowed):
        return None
    return replace(constraints.requiring(found.named), shadowed=found.shadowed)


def require_counted(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """The plan has a table with the column of which "how many" asks the sum."""
    counted = counted_columns(schema, context.question, context.values)
    return constraints.requiring(map(_tables, counted)) if counted else None


def follow_roles(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """Joins follow the keys whose roles the question says, and the plan has their tables."""
    roles = mentioned_roles(schema, context.question)
    required = constraints.requiring(_tables({place}) for place in sorted(unshared(roles)))
    return replace(required, roles=roles) if roles else None


def spare_identifiers(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """Identifiers are neither amounts nor, unless the question names them, tested."""
    return replace(constraints, identifiers=_identifiers(schema))


def bind_dates(
    constraints: QuestionConstraints, schema: Schema, context: QuestionContext
) -> QuestionConstraints | None:
    """A date column is compared with dates."""
    return replace(constraints, dated=True)


def _tables(places: Iterable[tuple[str, str]]) -> Places:
    return frozenset((table, "") for table, _ in places)


Stage = Literal["values", "constraints", "sql"]
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply(subject, schema, context)`: the changed subject, or None if nothing changes. `doc`: what holds after it."""

    name: str
    stage: Stage
    apply: Callable[[Any, Schema, QuestionContext], Any]
    doc: str


RULES = (
    Rule("meant", "values", drop_unmeant, "A plain word of the schema is no cell value."),
    Rule("named", "constraints", require_named, "A plan names the columns whose names the question says in full."),
    Rule("counted", "constraints", require_counted, "It has the table of the column that 'how many beds' adds up."),
    Rule("roles", "constraints", follow_roles, "Joins follow the foreign key whose role is said: a destination."),
    Rule("keys", "constraints", spare_identifiers, "Identifiers are not added up, measured, or tested unless named."),
    Rule("dates", "constraints", bind_dates, "A date column is compared with texts only if the question has digits."),
    Rule("dates", "sql", compare_years, "A date is compared with a year by its year."),
    Rule("literals", "sql", move_literals, "A literal stands at the column that holds it."),
    Rule("intersections", "sql", separate_values, "No column has two values at once: an INTERSECT, or an IN."),
    Rule("nulls", "sql", compare_nulls, "NULL is tested by IS NULL."),
    Rule("grouped", "sql", set_groups, "Groups fix what is shown beside aggregates."),
    Rule("counted", "sql", sum_counted, "'How many beds' is the sum of the beds."),
    Rule("genders", "sql", add_genders, "A gender that is named is a condition."),
    Rule("direction", "sql", set_direction, "ORDER BY has the direction that the question says."),
    Rule("bounds", "sql", set_bounds, "'30 or younger' is <= 30."),
    Rule("wildcards", "sql", set_wildcards, "LIKE has the wildcards of 'starts with'."),
    Rule("spelling", "sql", spell_names, "Names are written as the schema writes them."),
)
RULE_NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def rules_of(stage: Stage, context: QuestionContext) -> tuple[Rule, ...]:
    """The rules of a stage that are not switched off."""
    return tuple(rule for rule in RULES if rule.stage == stage and rule.name not in context.without)


def applied(rules: Sequence[Rule], subject: Subject, schema: Schema, context: QuestionContext) -> Subject:
    """What the rules make of it, one after the other."""
    for rule in rules:
        changed = rule.apply(subject, schema, context)
        subject = subject if changed is None else changed
    return subject


def repair_query(
    sql: str, database: Database, context: QuestionContext, limits: Limits
) -> tuple[str, QueryError | None]:
    """The query, and the error that is left, if any.

    The rules of the stage "sql" rewrite its tree together. What they make is bound once; only if that fails, each rule has to
    run by itself. Names that do not resolve are repaired if the engine rejects the query.
    """
    schema, rules = database.schema(), rules_of("sql", context)

    def runs(text: str) -> bool:
        return database.explain(text, limits) is None

    better = rewritten(sql, schema, context, rules)
    if better is not None and runs(better):
        return better, None
    error = database.explain(sql, limits)
    if error is None:
        return (sql if better is None else _one_by_one(sql, schema, context, rules, runs)), None
    named = repair_names(sql, error, schema)
    if named is None or not runs(named):
        return sql, error
    better = rewritten(named, schema, context, rules)
    if better is None or runs(better):
        return better or named, None
    return _one_by_one(named, schema, context, rules, runs), None


def rewritten(sql: str, schema: Schema, context: QuestionContext, rules: Sequence[Rule]) -> str | None:
    """The query after these rules, in their order; None if none of them changes it, or it is not one query."""
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return None
    tree = trees[0]
    try:
        for rule in rules:
            changed = rule.apply(tree.copy(), schema, context)  # a rule may leave traces in a tree that it gives up
            tree = tree if changed is None else changed
        return None if tree is trees[0] else tree.sql(schema.dialect)
    except (
        RecursionError,
        AttributeError,
        SqlglotError,
    ):  # nested a hundred deep; `DATETIME()` cannot be written for DuckDB
        return None


def _one_by_one(
    sql: str, schema: Schema, context: QuestionContext, rules: Sequence[Rule], runs: Callable[[str], bool]
) -> str:
    """The query after those rules whose results run."""
    for rule in rules:
        better = rewritten(sql, schema, context, [rule])
        sql = better if better is not None and runs(better) else sql
    return sql
