"""Sorts by words where the question asks for alphabetical order: names, and not the ages of those who are listed."""

import re

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref, type_kind

_BY_LETTERS = re.compile(r"\b(?:alphabetic(?:al|ally)?|lexicographic(?:al|ally)?)\b", re.I)


def sort_words(sql: str, schema: Schema, question: str) -> str | None:
    """The statement sorted by the only column of words that it shows; None unless the question asks for alphabetical order, and
    the statement's only key is a column of something else.

    >>> from tools.schema import Column, Table
    >>> pilot = Table("pilot", (Column("name", "TEXT"), Column("age", "INTEGER")))
    >>> sort_words("SELECT name FROM pilot ORDER BY age DESC", Schema((pilot,), "sqlite"), "Pilots in alphabetical order?")
    'SELECT name FROM pilot ORDER BY name DESC'
    """
    trees = parse_or_nothing(sql, schema.dialect) if _BY_LETTERS.search(question) else []
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or select.args.get("limit"):
        return None
    order = select.args.get("order")
    if order is None or len(order.expressions) != 1:
        return None
    key = order.expressions[0]
    shown = [item for item in select.selects if isinstance(item, exp.Column) and _kind(item, schema) == "text"]
    if len(shown) != 1 or not isinstance(key.this, exp.Column) or _kind(key.this, schema) in ("text", None):
        return None
    key.set("this", shown[0].copy())
    return select.sql(schema.dialect)


def _kind(column: exp.Column, schema: Schema) -> str | None:
    ref = column_ref(column, schema)
    table = schema.table(ref[0]) if ref else None
    found = table.column(ref[1]) if table and ref else None
    return type_kind(found.type) if found else None
