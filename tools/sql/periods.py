"""Periods of dates: groups by month, year or hour come in order."""

import re

from sqlglot import exp

from tools.schema import Schema
from tools.sql.scope import column_ref, kind_of

_PARTS = (exp.TimeToStr, exp.Extract, exp.Year, exp.Month, exp.Day, exp.Quarter, exp.DateTrunc, exp.TimestampTrunc)


def periods_in_order(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Sorts groups by a month, a year, an hour or a day, where nothing else sorts them.

    >>> from sqlglot import parse_one
    >>> from tools.schema import Column, Table
    >>> schema = Schema((Table("sale", (Column("sold", "DATE"),)),), "duckdb")
    >>> query = "SELECT STRFTIME('%Y', sold), COUNT(*) FROM sale GROUP BY STRFTIME('%Y', sold)"
    >>> periods_in_order(parse_one(query, dialect="sqlite"), schema).sql("duckdb").partition(" ORDER BY ")[2]
    "STRFTIME(CAST(sold AS TIMESTAMP), '%Y')"
    """
    if not isinstance(tree, exp.Select) or tree.args.get("order") or tree.args.get("limit"):
        return tree
    group = tree.args.get("group")
    keys = [key for key in (group.expressions if group else ()) if _is_period(_meant(key, tree), schema)]
    if keys:
        tree.set(
            "order",
            exp.Order(
                expressions=[exp.Ordered(this=key.copy(), nulls_first=schema.dialect == "sqlite") for key in keys]
            ),
        )
    return tree


def _meant(key: exp.Expr, select: exp.Select) -> exp.Expr:
    """What a key of groups stands for: a place or another name of something selected."""
    items: list[exp.Expr] = select.expressions
    if key.is_int and 1 <= int(key.name) <= len(items):
        return items[int(key.name) - 1].unalias()
    if isinstance(key, exp.Column) and not key.table:
        named = [item for item in items if item.alias and item.alias.casefold() == key.name.casefold()]
        return named[0].unalias() if named else key
    return key


def _is_period(key: exp.Expr, schema: Schema) -> bool:
    if isinstance(key, exp.Cast):
        return _is_period(key.this, schema)
    if isinstance(key, exp.Column):
        ref = column_ref(key, schema)
        return ref is not None and (kind_of(key, schema) == "time" or _NAMES_A_PERIOD.fullmatch(ref[1]) is not None)
    return isinstance(key, _PARTS)


_NAMES_A_PERIOD = re.compile(r"(?i)(?:.*[_ ])?(?:year|month|quarter|week|hour|day)")
