"""Deterministic repair of x = 'a' AND x = 'b', which never returns rows.

People say "students who have a cat and a dog": they mean the intersection of the rows with one and the rows with the other or,
if rows are counted or summed, the rows with either.
"""

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.schema import Schema
from tools.sql.parse_quietly import parse_quietly

# Clauses that cannot be copied into both halves.
_MORE = ("group", "having", "order", "limit", "windows", "qualify")


def separate_values(sql: str, schema: Schema) -> str | None:
    """The statement as it is meant, without repeated conditions; None if it requires no column to have two values at once.

    `sql` is in the schema's dialect. Only a single SELECT whose conditions are joined by AND is changed.

    No pet is a cat and a dog at once. First rows are listed, then they are counted:

    >>> from tools.schema import Column, Schema, Table
    >>> pet = Table("pet", (Column("owner", "TEXT"), Column("kind", "TEXT")))
    >>> schema = Schema((pet,), "sqlite")
    >>> separate_values("SELECT owner FROM pet WHERE kind = 'cat' AND kind = 'dog'", schema)
    "SELECT owner FROM pet WHERE kind = 'cat' INTERSECT SELECT owner FROM pet WHERE kind = 'dog'"
    >>> separate_values("SELECT COUNT(*) FROM pet WHERE kind = 'cat' AND kind = 'dog'", schema)
    "SELECT COUNT(*) FROM pet WHERE kind IN ('cat', 'dog')"
    """
    try:
        statements = parse_quietly(sql, schema.dialect)
    except (SqlglotError, RecursionError):
        return None
    select = statements[0] if len(statements) == 1 else None
    if not isinstance(select, exp.Select) or select.args.get("where") is None:
        return None
    conditions = _different(select.args["where"].this)
    wanted = [each for each in conditions if _value_of(each)]
    columns = [str(each.this.sql()).casefold() for each in wanted]
    rivals = [each for each, column in zip(wanted, columns, strict=True) if columns.count(column) > 1]
    if len(rivals) != 2 or any(select.args.get(clause) for clause in _MORE):
        return None
    others = [each for each in conditions if each not in rivals]
    if all(each.find(exp.AggFunc) for each in select.expressions):
        either = exp.In(this=rivals[0].this.copy(), expressions=[each.expression.copy() for each in rivals])
        return _where(select, [either, *others]).sql(schema.dialect)
    halves = [_where(select, [rival, *others]) for rival in rivals]
    return exp.intersect(*halves, copy=False).sql(schema.dialect)


def _different(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions joined by AND, each once."""
    parts = condition.flatten() if isinstance(condition, exp.And) else [condition]
    return list(dict.fromkeys(parts))


def _value_of(condition: exp.Expr) -> bool:
    """Whether the condition says which value a column has."""
    return (
        isinstance(condition, exp.EQ)
        and isinstance(condition.this, exp.Column)
        and isinstance(condition.expression, exp.Literal)
    )


def _where(select: exp.Select, conditions: Sequence[exp.Expr]) -> exp.Select:
    """A copy of the query with other conditions."""
    return select.copy().where(*(each.copy() for each in conditions), append=False)
