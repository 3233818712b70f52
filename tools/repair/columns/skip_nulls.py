"""Leaves empty cells out of a NOT IN: beside one of them, nothing is outside of a list."""

from collections.abc import Callable

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing

HasRows = Callable[[str], bool]
"""Whether a query has rows; not if it cannot run."""


def skip_nulls(sql: str, schema: Schema, has_rows: HasRows) -> str | None:
    """The statement whose NOT IN tests against cells that are not empty; None if the list has no empty ones.

    >>> sql = "SELECT COUNT(*) FROM customers WHERE id NOT IN (SELECT customer FROM orders)"
    >>> print(skip_nulls(sql, Schema((), "duckdb"), lambda empty: True))
    SELECT COUNT(*) FROM customers WHERE NOT id IN (SELECT customer FROM orders WHERE NOT customer IS NULL)
    """
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1:
        return None
    tests = [test for test in trees[0].find_all(exp.In) if isinstance(test.parent, exp.Not)]
    changed = [_skips(test, schema.dialect, has_rows) for test in tests]
    return trees[0].sql(schema.dialect) if any(changed) else None


def _skips(test: exp.In, dialect: str, has_rows: HasRows) -> bool:
    """Whether the list was a query of one column, some of whose cells are empty."""
    query = test.args.get("query")
    select = query.this if isinstance(query, exp.Subquery) else None
    if not isinstance(select, exp.Select) or any(select.args.get(part) for part in ("group", "limit", "offset")):
        return False
    name = select.selects[0].unalias() if len(select.selects) == 1 else None
    if not isinstance(name, exp.Column):
        return False
    empty = exp.Is(this=name.copy(), expression=exp.null())
    if not has_rows(select.where(empty).limit(1).sql(dialect)):
        return False
    select.where(exp.not_(empty.copy()), copy=False)
    return True
