"""Takes the first or the last row by a date: what was "opened last" has no `opened_on = 0`."""

import re

from sqlglot import exp

from tools.linking.word_forms import name_words
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref, type_kind

_NAMES = re.compile(r"\b(?:first|last)(?:,? (?:and|or) (?:first|last))? names?\b", re.IGNORECASE)
_FIRST = re.compile(r"\b(?:first|earliest|oldest)\b", re.IGNORECASE)
_LAST = re.compile(r"\b(?:last|latest|newest|most recent(?:ly)?)\b(?! (?:year|month|week|quarter))", re.IGNORECASE)
_SHAPED = ("group", "having", "order", "limit", "offset", "distinct")
_LEAST_YEAR = 1000  # smaller numbers are no years


def take_first(sql: str, schema: Schema, question: str) -> str | None:
    """The statement sorted by a date or a year, of which it takes the first row, in place of a condition that holds it equal to
    a number that is no year; None unless there is one such condition, and the question says "first" or "last".

    >>> from tools.schema import Column, Table
    >>> store = Table("stores", (Column("name", "TEXT"), Column("opened_on", "DATE")))
    >>> sql = "SELECT name FROM stores WHERE opened_on = 0"
    >>> take_first(sql, Schema((store,), "duckdb"), "Which store was opened last?")
    'SELECT name FROM stores ORDER BY opened_on DESC LIMIT 1'
    """
    last = last_said(question)
    trees = parse_or_nothing(sql, schema.dialect) if last is not None else []
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or any(select.args.get(part) for part in _SHAPED):
        return None
    where = select.args.get("where")
    conditions = (
        list(where.this.flatten()) if where and isinstance(where.this, exp.And) else [where.this] if where else []
    )
    dated = [one for one in conditions if _is_no_date(one, schema)]
    if len(dated) != 1 or select.find(exp.AggFunc):
        return None
    left = [one for one in conditions if one is not dated[0]]
    select.set("where", exp.Where(this=exp.and_(*left)) if left else None)
    ordered = exp.Ordered(
        this=dated[0].this, desc=last or None, nulls_first=not last if schema.dialect == "sqlite" else None
    )
    select.set("order", exp.Order(expressions=[ordered]))
    return select.limit(1).sql(schema.dialect)


def last_said(question: str) -> bool | None:
    """Whether the question asks for what is last in time; False if for what is first, None if for neither or both."""
    said = _NAMES.sub("", question)
    first, last = bool(_FIRST.search(said)), bool(_LAST.search(said))
    return last if first != last else None


def _is_no_date(condition: exp.Expr, schema: Schema) -> bool:
    """Whether a column of dates or years is held equal to a number that is no year."""
    name, value = condition.this, condition.args.get("expression")
    if not (isinstance(condition, exp.EQ) and isinstance(name, exp.Column) and isinstance(value, exp.Literal)):
        return False
    ref = column_ref(name, schema)
    table = schema.table(ref[0]) if ref else None
    column = table.column(ref[1]) if table and ref else None
    if column is None or not (type_kind(column.type) == "time" or "year" in name_words(column.name)):
        return False
    return value.name.isdigit() and int(value.name) < _LEAST_YEAR
