"""Takes back ANY_VALUE where it makes one row of all: whoever asks for names does not want any one of them."""

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing


def unwrap_picks(sql: str, schema: Schema) -> str | None:
    """The statement without the ANY_VALUE of queries that have neither groups nor another aggregate; None if there is none.

    >>> duckdb = Schema((), "duckdb")
    >>> unwrap_picks("SELECT ANY_VALUE(name) FROM store ORDER BY ANY_VALUE(area) DESC LIMIT 3", duckdb)
    'SELECT name FROM store ORDER BY area DESC LIMIT 3'
    >>> unwrap_picks("SELECT ANY_VALUE(name), COUNT(*) FROM store", duckdb)
    """
    trees = parse_or_nothing(sql, schema.dialect) if "any_value" in sql.lower() else []
    if len(trees) != 1:
        return None
    picks = [pick for select in list(trees[0].find_all(exp.Select)) for pick in _picks(select)]
    for pick in picks:
        pick.replace(pick.this)
    return trees[0].sql(schema.dialect) if picks else None


def _picks(select: exp.Select) -> list[exp.Expr]:
    """The query's own aggregates if it has no groups, and all of them are ANY_VALUE."""
    if any(select.args.get(name) for name in ("group", "having", "distinct")):
        return []
    parts = [*select.expressions, *filter(None, [select.args.get("order")])]
    found: list[exp.Expr] = [
        node
        for part in parts
        for node in part.walk(prune=lambda node: isinstance(node, exp.AggFunc | exp.Query | exp.Window))
        if isinstance(node, exp.AggFunc)
    ]
    return found if all(isinstance(node, exp.AnyValue) for node in found) else []
