"""Shows both ends where the question asks for both: the oldest and the youngest are two values, and no first row."""

import re

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing

_HIGH = r"(?:oldest|max(?:imum)?|highest|largest|biggest|longest|greatest|latest)"
_LOW = r"(?:youngest|min(?:imum)?|lowest|smallest|shortest|earliest)"
_BOTH = re.compile(rf"\b(?:({_HIGH}) and (?:the )?{_LOW}|{_LOW} and (?:the )?{_HIGH})\b", re.I)


def show_extremes(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with the maximum and the minimum of its column in the order of the question; None unless it shows one
    column, sorts by that, and takes the first row.

    >>> sql = "SELECT age FROM student WHERE major = 600 ORDER BY age DESC LIMIT 1"
    >>> show_extremes(sql, Schema((), "sqlite"), "Tell me the ages of the oldest and youngest students in major 600.")
    'SELECT MAX(age), MIN(age) FROM student WHERE major = 600'
    """
    both = _BOTH.search(question)
    trees = parse_or_nothing(sql, schema.dialect) if both else []
    select = trees[0] if len(trees) == 1 else None
    if both is None or not isinstance(select, exp.Select) or not _takes_first(select):
        return None
    column = select.selects[0]
    ends = [exp.Max(this=column.copy()), exp.Min(this=column.copy())]
    select.set("expressions", ends if both[1] else ends[::-1])
    select.set("order", None)
    select.set("limit", None)
    return select.sql(schema.dialect)


def _takes_first(select: exp.Select) -> bool:
    """Whether it is the first row of the only column, sorted by that, and nothing else."""
    order, limit = select.args.get("order"), select.args.get("limit")
    if order is None or limit is None or len(select.selects) != 1 or len(order.expressions) != 1:
        return False
    other = any(select.args.get(part) for part in ("distinct", "group", "having", "offset"))
    column, key = select.selects[0], order.expressions[0].this
    return isinstance(column, exp.Column) and column == key and limit.expression.name == "1" and not other
