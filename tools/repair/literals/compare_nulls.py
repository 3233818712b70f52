"""`= NULL` is never true: what is meant is IS NULL, and IS NOT NULL where `<>` or `!=` stands."""

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing


def compare_nulls(sql: str, schema: Schema) -> str | None:
    """The statement with IS NULL and IS NOT NULL in its conditions; None if nothing is compared with NULL.

    >>> compare_nulls("SELECT title FROM albums WHERE release_date = NULL", Schema((), "duckdb"))
    'SELECT title FROM albums WHERE release_date IS NULL'
    >>> compare_nulls("SELECT title FROM albums WHERE NULL <> release_date", Schema((), "sqlite"))
    'SELECT title FROM albums WHERE NOT release_date IS NULL'
    """
    trees = parse_or_nothing(sql, schema.dialect) if "null" in sql.lower() else []
    if len(trees) != 1:
        return None
    found = [each for each in trees[0].find_all(exp.EQ, exp.NEQ) if _is_condition(each) and _other_side(each)]
    for each in found:
        test: exp.Expr = exp.Is(this=_other_side(each), expression=exp.Null())
        each.replace(exp.Not(this=test) if isinstance(each, exp.NEQ) else test)
    return trees[0].sql(schema.dialect) if found else None


def _other_side(comparison: exp.Expr) -> exp.Expr | None:
    """What is compared with NULL; None if nothing is."""
    sides = (comparison.this, comparison.expression)
    return next((side for side, other in (sides, sides[::-1]) if isinstance(other, exp.Null)), None)


def _is_condition(comparison: exp.Expr) -> bool:
    """Whether it stands in a WHERE, a HAVING or an ON, and not in the SET of an UPDATE, for instance."""
    return comparison.find_ancestor(exp.Where, exp.Having, exp.Join) is not None
