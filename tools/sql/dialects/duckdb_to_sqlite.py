"""Shows DuckDB's SQL as it would have been written for SQLite, without what only DuckDB needs.

It is for reading, not for running: `sqlite_to_duckdb` gives back what is left out here.
"""

from sqlglot import exp

from tools.sql.parse_quietly import parse_or_nothing


def duckdb_to_sqlite(sql: str) -> str:
    """The query in SQLite's SQL; as it is where it cannot be read.

    Columns stand bare beside aggregates, LIKE ignores case, and texts are compared with numbers without casts:

    >>> duckdb_to_sqlite("SELECT ANY_VALUE(name), COUNT(*) FROM singer WHERE name ILIKE 'a%' GROUP BY country")
    "SELECT name, COUNT(*) FROM singer WHERE name LIKE 'a%' GROUP BY country"
    >>> duckdb_to_sqlite("SELECT name FROM singer WHERE TRY_CAST(age AS DOUBLE) > 30 ORDER BY age NULLS FIRST")
    'SELECT name FROM singer WHERE age > 30 ORDER BY age'
    """
    trees = parse_or_nothing(sql, "duckdb")
    if len(trees) != 1:
        return sql
    try:
        for node in reversed(list(trees[0].bfs())):  # the innermost first
            node.replace(_simpler(node))
        return trees[0].sql("sqlite")
    except Exception:  # whatever sqlglot's writer may raise
        return sql


def _simpler(node: exp.Expr) -> exp.Expr:
    inner: exp.Expr = node.this
    if isinstance(node, exp.Alias) and inner.sql() == node.alias:
        return inner  # the name that ANY_VALUE was given
    if isinstance(node, exp.AnyValue | exp.ArgMax | exp.ArgMin | exp.TryCast | exp.IgnoreNulls):
        return inner
    if isinstance(node, exp.ILike):
        return exp.Like(**node.args)
    if isinstance(node, exp.IntDiv | exp.Div):
        return exp.Div(this=node.this, expression=node.expression, typed=True, safe=True)
    if isinstance(node, exp.Anonymous) and node.name.upper() == "JULIAN":
        return exp.Anonymous(this="JULIANDAY", expressions=node.expressions)
    if isinstance(node, exp.Ordered):
        node.set("nulls_first", not node.args.get("desc"))  # SQLite's own order, which is not written
    return node
