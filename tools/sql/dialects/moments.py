"""SQLite's functions of dates and times, and its TOTAL, in DuckDB's terms, as far as sqlglot's transpiler leaves them out."""

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from tools.schema import Schema


def moments(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Rewrites DATETIME, TIME, JULIANDAY, TOTAL and 'now'. What is no moment becomes NULL, as in SQLite.

    Raises ValueError for modifiers such as '+1 day', which have no counterpart.

    >>> from tools.sql.dialects.sqlite_to_duckdb import sqlite_to_duckdb
    >>> schema = Schema((), "duckdb")
    >>> sqlite_to_duckdb("SELECT JULIANDAY(ended) - JULIANDAY(begun), TIME(begun) FROM visit", schema)
    'SELECT JULIAN(TRY_CAST(ended AS TIMESTAMP)) - JULIAN(TRY_CAST(begun AS TIMESTAMP)), TRY_CAST(begun AS TIME) FROM visit'
    >>> sqlite_to_duckdb("SELECT STRFTIME('%Y', 'now'), DATE()", schema)
    "SELECT STRFTIME(CAST(CURRENT_TIMESTAMP AS TIMESTAMP), '%Y'), CURRENT_DATE"
    """
    for node in list(tree.find_all(exp.Anonymous)):
        if rewrite := _FUNCTIONS.get(node.name.upper()):
            node.replace(rewrite(node.expressions))
    for date in list(tree.find_all(exp.Date)):
        if date.this is None or _is_now(date.this):
            date.replace(exp.CurrentDate())
    for moment in list(tree.find_all(exp.TsOrDsToTimestamp)):
        if _is_now(moment.this):
            moment.set("this", exp.CurrentTimestamp())
    return tree


def _is_now(node: exp.Expr) -> bool:
    return node.is_string and node.name.lower() == "now"


def _moment(kind: str, arguments: Sequence[exp.Expr]) -> exp.Expr:
    if len(arguments) > 1:
        raise ValueError(f"modifiers of dates have no counterpart in DuckDB: {arguments[1].sql()}")
    if not arguments or _is_now(arguments[0]):
        return exp.cast(exp.CurrentTimestamp(), kind)
    return exp.TryCast(this=arguments[0].copy(), to=exp.DataType.build(kind))


def _total(arguments: Sequence[exp.Expr]) -> exp.Expr:
    return exp.Coalesce(this=exp.Sum(this=arguments[0].copy()), expressions=[exp.Literal.number("0.0")])


_FUNCTIONS: Mapping[str, Callable[[Sequence[exp.Expr]], exp.Expr]] = {
    "DATE": lambda arguments: _moment("DATE", arguments),
    "DATETIME": lambda arguments: _moment("TIMESTAMP", arguments),
    "TIME": lambda arguments: _moment("TIME", arguments),
    "JULIANDAY": lambda arguments: exp.Anonymous(this="JULIAN", expressions=[_moment("TIMESTAMP", arguments)]),
    "TOTAL": _total,
}
