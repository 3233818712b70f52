"""Sorts by a date where the question asks for it: the newest album has the latest date, and not the highest identifier."""

from sqlglot import exp

from tools.linking.word_forms import name_words
from tools.repair.shape.take_first import last_said
from tools.schema import Column, Schema, Table
from tools.sql.joinable_columns import identifiers
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref, type_kind

_NAMED = frozenset({"date", "year"})


def take_dates(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with the only date of a table in place of its identifier, where that is sorted by or its extreme is shown
    and the question says "newest", "first" and the like; None if nothing changes.

    >>> from tools.schema import Column, Table
    >>> album = Table("album", (Column("id", "INTEGER", primary_key=True), Column("title", "TEXT"), Column("released", "DATE")))
    >>> schema = Schema((album,), "duckdb")
    >>> take_dates("SELECT title FROM album ORDER BY id DESC LIMIT 3", schema, "What are the three newest albums?")
    'SELECT title FROM album ORDER BY released DESC LIMIT 3'
    >>> take_dates("SELECT MAX(id) FROM album", schema, "When was the last album released?")
    'SELECT MAX(released) FROM album'
    """
    last = last_said(question)
    trees = parse_or_nothing(sql, schema.dialect) if last is not None else []
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or last is None:
        return None
    changed = _sorted(select, schema, last) or _shown(select, schema, last)
    return select.sql(schema.dialect) if changed else None


def _sorted(select: exp.Select, schema: Schema, last: bool) -> bool:
    """Whether the key of the order, from which the first rows are taken, was an identifier."""
    order = select.args.get("order")
    if order is None or not select.args.get("limit") or len(order.expressions) != 1 or select.args.get("group"):
        return False
    (key,) = order.expressions
    if not _dated(key.this, schema):
        return False
    key.set("desc", last or None)
    if schema.dialect == "sqlite":
        key.set("nulls_first", not last)
    return True


def _shown(select: exp.Select, schema: Schema, last: bool) -> bool:
    """Whether all that is shown was the highest or the lowest identifier."""
    if len(select.selects) != 1 or not isinstance(extreme := select.selects[0].unalias(), exp.Max | exp.Min):
        return False
    if not _dated(extreme.this, schema):
        return False
    extreme.replace((exp.Max if last else exp.Min)(this=extreme.this))
    return True


def _dated(key: exp.Expr, schema: Schema) -> bool:
    """Whether the key was an identifier, in whose place its table's date stands now."""
    ref = column_ref(key, schema) if isinstance(key, exp.Column) else None
    table = schema.table(ref[0]) if ref else None
    if ref is None or table is None or (ref[0].lower(), ref[1].lower()) not in identifiers(schema):
        return False
    dates = _dates(table)
    if len(dates) != 1:
        return False
    key.set("this", exp.to_identifier(dates[0].name, quoted=not dates[0].name.isidentifier()))
    return True


def _dates(table: Table) -> list[Column]:
    """Its columns of dates by their types, or by their names where there is none."""
    typed = [column for column in table.columns if type_kind(column.type) == "time" and column.type.upper() != "TIME"]
    return typed or [column for column in table.columns if not _NAMED.isdisjoint(name_words(column.name))]
