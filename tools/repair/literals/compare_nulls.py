"""`= NULL` is never true: what is meant is IS NULL, and IS NOT NULL where `<>` or `!=` stands.

A column that is compared with itself is one that is not NULL.
"""

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing


def compare_nulls(sql: str, schema: Schema) -> str | None:
    """The statement with IS NULL and IS NOT NULL in its conditions; None if nothing is compared with NULL or with itself.

    >>> compare_nulls("SELECT title FROM albums WHERE release_date = NULL", Schema((), "duckdb"))
    'SELECT title FROM albums WHERE release_date IS NULL'
    >>> compare_nulls("SELECT title FROM albums WHERE NULL <> release_date", Schema((), "sqlite"))
    'SELECT title FROM albums WHERE NOT release_date IS NULL'
    >>> compare_nulls("SELECT title FROM albums WHERE release_date = release_date", Schema((), "sqlite"))
    'SELECT title FROM albums WHERE NOT release_date IS NULL'
    """
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1:
        return None
    compared = [each for each in trees[0].find_all(exp.EQ, exp.NEQ) if _is_condition(each)]
    found = [(each, test) for each in compared if (test := _test(each))]
    for each, test in found:
        each.replace(test)
    return trees[0].sql(schema.dialect) if found else None


def _test(comparison: exp.Expr) -> exp.Expr | None:
    """The test for NULL that is meant; None if none is."""
    is_equal, side = isinstance(comparison, exp.EQ), _other_side(comparison)
    if side is not None:
        return _is_null(side) if is_equal else exp.Not(this=_is_null(side))
    one, other = comparison.this, comparison.expression
    is_itself = (
        is_equal and isinstance(one, exp.Column) and isinstance(other, exp.Column) and _name(one) == _name(other)
    )
    return exp.Not(this=_is_null(one)) if is_itself else None


def _name(column: exp.Column) -> tuple[str, str]:
    return column.table.lower(), column.name.lower()


def _is_null(side: exp.Expr) -> exp.Expr:
    return exp.Is(this=side.copy(), expression=exp.Null())


def _other_side(comparison: exp.Expr) -> exp.Expr | None:
    """What is compared with NULL; None if nothing is."""
    sides = (comparison.this, comparison.expression)
    return next((side for side, other in (sides, sides[::-1]) if isinstance(other, exp.Null)), None)


def _is_condition(comparison: exp.Expr) -> bool:
    """Whether it stands in a WHERE, a HAVING or an ON, and not in the SET of an UPDATE, for instance."""
    return comparison.find_ancestor(exp.Where, exp.Having, exp.Join) is not None
