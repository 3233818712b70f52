"""Compares a date with a bare year by the year of the date: `released = 2019` is meant so, and is never true as it stands."""

import re

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref, type_kind

_YEAR = re.compile(r"[12]\d{3}")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In)


def compare_years(sql: str, schema: Schema) -> str | None:
    """The statement with dates compared by their years where it has years; None if nothing changes.

    >>> from tools.schema import Column, Table
    >>> song = Table("song", (Column("released", "DATE", samples=("2019-05-01",)),))
    >>> compare_years("SELECT COUNT(*) FROM song WHERE released >= 2019", Schema((song,), "duckdb"))
    'SELECT COUNT(*) FROM song WHERE EXTRACT(YEAR FROM released) >= 2019'

    A date that is compared as text, as SQLite does, is a date all the same:

    >>> compare_years("SELECT COUNT(*) FROM song WHERE CAST(released AS TEXT) = '2019'", Schema((song,), "duckdb"))
    'SELECT COUNT(*) FROM song WHERE EXTRACT(YEAR FROM released) = 2019'
    """
    trees = parse_or_nothing(sql, schema.dialect)
    changed = [_by_year(node, schema) for tree in trees[:1] for node in list(tree.find_all(*_COMPARISONS))]
    return trees[0].sql(schema.dialect) if any(changed) else None


def _by_year(node: exp.Expr, schema: Schema) -> bool:
    """Whether the comparison was changed."""
    years, date = _compared(node), node.this.this if _is_text(node.this) else node.this
    if not isinstance(date, exp.Column) or not years or not all(map(_is_year, years)):
        return False
    year = _year_of(date, schema)
    if year is None:
        return False
    for each in years:
        each.replace(exp.Literal.number(each.name))
    node.this.replace(year)
    return True


def _compared(node: exp.Expr) -> list[exp.Expr]:
    """What the column is compared with."""
    if isinstance(node, exp.In):
        return list(node.expressions)
    return [node.args["low"], node.args["high"]] if isinstance(node, exp.Between) else [node.expression]


def _is_text(node: exp.Expr) -> bool:
    """Whether it is a cast to text."""
    return isinstance(node, exp.Cast) and node.to.is_type(*exp.DataType.TEXT_TYPES)


def _is_year(value: exp.Expr) -> bool:
    return isinstance(value, exp.Literal) and _YEAR.fullmatch(value.name) is not None


def _year_of(name: exp.Column, schema: Schema) -> exp.Expr | None:
    """The year of a column of dates; None for any other column. SQLite and files that DuckDB reads have dates as texts, too."""
    ref = column_ref(name, schema)
    table = schema.table(ref[0]) if ref else None
    column = table.column(ref[1]) if table and ref else None
    if column is None or not all(_ISO_DATE.match(sample) for sample in column.samples):
        return None
    typed = type_kind(column.type) == "time" and column.type.upper() not in ("TIME", "YEAR")
    written = type_kind(column.type) == "text" and bool(column.samples)
    if schema.dialect == "sqlite" and (typed or written):
        return exp.cast(exp.Anonymous(this="STRFTIME", expressions=[exp.Literal.string("%Y"), name.copy()]), "INTEGER")
    if typed:
        return exp.Extract(this=exp.var("YEAR"), expression=name.copy())
    date = exp.TryCast(this=name.copy(), to=exp.DataType.build("DATE"))
    return exp.Extract(this=exp.var("YEAR"), expression=date) if schema.dialect == "duckdb" and written else None
