"""Where NULLs are sorted, and what rows that are all different may be sorted by."""

from sqlglot import exp

from tools.schema import Schema
from tools.sql.scope import kind_of, owner


def null_order(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Sorts NULLs first, as SQLite does, and omits that where there can be none.

    An age may be missing, a primary key cannot:

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("id", "INTEGER", primary_key=True), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> from_sqlite("SELECT id FROM singer ORDER BY age, id", schema)
    'SELECT id FROM singer ORDER BY age NULLS FIRST, id'
    """
    for ordered in tree.find_all(exp.Ordered):
        if not _may_be_null(ordered, schema):
            ordered.set("nulls_first", _is_first_anyway(ordered, schema))
    return tree


def nulls_last(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Sorts NULLs last, so that the smallest value is no missing one, and omits that where an engine does so by itself.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> schema = Schema((), "duckdb")
    >>> from_sqlite("SELECT id FROM singer ORDER BY age LIMIT 1", schema, exactly=False)
    'SELECT id FROM singer ORDER BY age LIMIT 1'
    >>> from_sqlite("SELECT id FROM singer ORDER BY age DESC LIMIT 1", Schema((), "postgres"), exactly=False)
    'SELECT id FROM singer ORDER BY age DESC NULLS LAST LIMIT 1'
    """
    for ordered in tree.find_all(exp.Ordered):
        spelled = schema.dialect != "mysql" or _may_sort_by_more(ordered)
        last = spelled and _may_be_null(ordered, schema)
        ordered.set("nulls_first", False if last else _is_first_anyway(ordered, schema))
    return tree


def _may_be_null(ordered: exp.Ordered, schema: Schema) -> bool:
    key = ordered.this
    source = owner(key, schema) if isinstance(key, exp.Column) else None
    column = source.table.column(key.name) if source and source.table else None
    return not (isinstance(key, exp.Count) or (column is not None and (column.primary_key or not column.nullable)))


def _is_first_anyway(ordered: exp.Ordered, schema: Schema) -> bool:
    """The dialect's own order, which is not written. DuckDB's is last, PostgreSQL takes NULL for the largest value, and most
    others for the smallest."""
    descending = bool(ordered.args.get("desc"))
    if schema.dialect in ("duckdb", "trino"):
        return False
    return descending if schema.dialect in ("postgres", "snowflake", "oracle") else not descending


def _may_sort_by_more(ordered: exp.Ordered) -> bool:
    """Whether the rows may be sorted by what they do not show: MySQL writes the order of NULLs as one more key."""
    query = ordered.parent.parent if ordered.parent else None
    return isinstance(query, exp.Select) and query.args.get("distinct") is None


def distinct_order(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Groups rows that are all different where they are sorted by something that they do not show.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> singer = Table("singer", (Column("name", "TEXT"), Column("age", "INTEGER", nullable=False)))
    >>> from_sqlite("SELECT DISTINCT name FROM singer ORDER BY age", Schema((singer,), "postgres"))
    'SELECT name FROM singer GROUP BY name ORDER BY MIN(age) NULLS FIRST'
    """
    for select in list(tree.find_all(exp.Select)):
        order = select.args.get("order")
        shown = {item.unalias().sql().casefold() for item in select.expressions} | {
            item.alias_or_name.casefold() for item in select.expressions
        }
        if select.args.get("distinct") is None or order is None or select.args.get("group"):
            continue
        hidden = [
            each
            for each in order.expressions
            if each.this.sql().casefold() not in shown and not each.this.is_int and not _is_named(each.this, shown)
        ]
        if not hidden or any(item.is_star or item.find(exp.AggFunc) for item in select.expressions):
            continue
        select.set("distinct", None)
        select.set("group", exp.Group(expressions=[item.unalias().copy() for item in select.expressions]))
        for ordered in hidden:
            if kind_of(ordered.this, schema) != "boolean":
                first = exp.Max if ordered.args.get("desc") else exp.Min
                ordered.set("this", first(this=ordered.this.copy()))
    return tree


def _is_named(key: exp.Expr, shown: set[str]) -> bool:
    return isinstance(key, exp.Column) and not key.table and key.name.casefold() in shown
