"""Repairs a query by rules before the model is asked again. It does not guess, and keeps only repairs that run."""

from collections.abc import Callable, Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.databases.database import Database
from tools.linking.question_context import QuestionContext
from tools.repair.names import repair_names
from tools.repair.rules import Rule, rules_of
from tools.result import Limits, QueryError
from tools.schema import Schema
from tools.sql.scope import parse_or_nothing


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
