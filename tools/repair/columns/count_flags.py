"""Counts the rows whose flag is set: "how many customers read the newsletter" counts no flags, and no values of one."""

import re

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import kind_of

_HOW_MANY = re.compile(r"\b(?:how many|(?:number|count) of)\b", re.I)
_NEGATED = re.compile(r"\b(?:no|not|never|without|nor|neither)\b|n['’]t\b", re.I)


def count_flags(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with COUNT(*) of the rows whose flag is set, or is not where the question negates, in place of a COUNT of a
    BOOLEAN column; None if it shows anything else, or has a condition on the column already.

    >>> from tools.schema import Column, Table
    >>> customer = Table("customer", (Column("name", "TEXT"), Column("newsletter", "BOOLEAN")))
    >>> sql = "SELECT COUNT(DISTINCT newsletter) FROM customer"
    >>> count_flags(sql, Schema((customer,), "duckdb"), "How many customers read the newsletter?")
    'SELECT COUNT(*) FROM customer WHERE newsletter'
    """
    trees = parse_or_nothing(sql, schema.dialect) if _HOW_MANY.search(question) else []
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or len(select.selects) != 1:
        return None
    count = select.selects[0].unalias()
    flag = _counted(count)
    if flag is None or kind_of(flag, schema) != "boolean":
        return None
    if sum(column.name.lower() == flag.name.lower() for column in select.find_all(exp.Column)) > 1:
        return None
    count.replace(exp.Count(this=exp.Star()))
    return select.where(exp.not_(flag) if _NEGATED.search(question) else flag).sql(schema.dialect)


def _counted(count: exp.Expr) -> exp.Column | None:
    """The column that a COUNT counts, or whose different values it counts."""
    if not isinstance(count, exp.Count):
        return None
    inner = count.this.expressions[0] if isinstance(count.this, exp.Distinct) else count.this
    return inner if isinstance(inner, exp.Column) else None
