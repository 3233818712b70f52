"""Adds to a query the columns without which its rows do not say what they are: those it is grouped by and the one it is sorted
by. The query with them is run beside the model's own, and counts only where the common columns are the same.
"""

from dataclasses import dataclass

from sqlglot import exp

from tools.schema import Schema
from tools.sql.scope import one_value, owner


@dataclass(frozen=True, slots=True)
class Fuller:
    """`before` columns stand before the query's own, `after` (0 or 1) behind them."""

    select: exp.Select
    before: int
    after: int


def fuller(select: exp.Select, schema: Schema) -> Fuller:
    """The query with the columns that it lacks; with none if it lacks none, or if more columns would change its rows."""
    whole = select.copy()
    assert isinstance(whole, exp.Select)
    order = select.args.get("order")
    by_place = any(isinstance(each.this, exp.Literal) for each in (order.expressions if order else ()))
    if select.args.get("distinct") or by_place:
        return Fuller(whole, 0, 0)
    there = {_text(one_value(each)) for each in select.expressions} | {
        each.alias.casefold() for each in select.expressions
    }
    groups = [each for each in _groups(select) if _text(each) not in there and not _is_named(each, select, schema)]
    key = sort_key(select)
    added = [key] if key is not None and _text(key) not in there and _text(key) not in map(_text, groups) else []
    if any(each.find(exp.Select, exp.Subquery) or _is_key(each, schema) for each in added):
        added = []
    whole.set("expressions", [each.copy() for each in (*groups, *whole.expressions, *added)])
    return Fuller(whole, len(groups), len(added))


def sort_key(select: exp.Select) -> exp.Expr | None:
    """What the rows are sorted by first; None if by nothing, or by a column's place."""
    order = select.args.get("order")
    first = order.expressions[0].this if order and order.expressions else None
    return None if first is None or isinstance(first, exp.Literal) else first


def _groups(select: exp.Select) -> list[exp.Expr]:
    group = select.args.get("group")
    return [each for each in group.expressions if isinstance(each, exp.Column)] if group else []


def _is_key(node: exp.Expr, schema: Schema) -> bool:
    """Whether it is a primary key: rows sorted by it are in no order that says anything."""
    source = owner(node, schema) if isinstance(node, exp.Column) else None
    column = source.table.column(node.name) if source and source.table else None
    return column is not None and column.primary_key


def _is_named(group: exp.Expr, select: exp.Select, schema: Schema) -> bool:
    """Whether the query shows another column of the rows that it groups by a key, such as their name."""
    if not isinstance(group, exp.Column) or not (source := owner(group, schema)) or source.table is None:
        return False
    key = source.table.column(group.name)
    refers = {each.ref_table.casefold() for each in source.table.foreign_keys if group.name in each.columns}
    if not refers and not (key and key.primary_key):
        return False
    stands_for = refers or {source.table.name.casefold()}
    shown = [column for item in select.expressions for column in item.find_all(exp.Column)]
    owners = [owner(column, schema) for column in shown if not column.find_ancestor(exp.Count, exp.Sum, exp.Avg)]
    return any(each and each.table and each.table.name.casefold() in stands_for for each in owners)


def _text(node: exp.Expr) -> str:
    return node.sql().casefold()
