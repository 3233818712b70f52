"""SQL as it would have been written for SQLite, without what only another dialect needs, and with bare names of tables: what
prompts show of a conversation. It is for reading, not for running: `from_sqlite` gives back what is left out here.
"""

from sqlglot import exp

from tools.schema import Schema
from tools.sql.moments import JULIAN_1970
from tools.sql.qualified import bare
from tools.sql.scope import parse_or_nothing

_PARTS = {"YEAR": "%Y", "MONTH": "%m", "DAY": "%d", "HOUR": "%H", "MINUTE": "%M", "SECOND": "%S", "DOW": "%w"}


def to_sqlite(sql: str, schema: Schema) -> str:
    """The query in SQLite's SQL; as it is where it cannot be read.

    Columns stand bare beside aggregates, LIKE ignores case, and texts are compared with numbers without casts:

    >>> schema = Schema((), "duckdb")
    >>> to_sqlite("SELECT ANY_VALUE(name), COUNT(*) FROM singer WHERE name ILIKE 'a%' GROUP BY country", schema)
    "SELECT name, COUNT(*) FROM singer WHERE name LIKE 'a%' GROUP BY country"
    >>> to_sqlite("SELECT name FROM singer WHERE TRY_CAST(age AS DOUBLE) > 30 ORDER BY age NULLS FIRST", schema)
    'SELECT name FROM singer WHERE age > 30 ORDER BY age'
    >>> to_sqlite("SELECT MIN(name) AS name, SUM(CAST(is_open AS INT)) FROM shop", Schema((), "postgres"))
    'SELECT name, SUM(is_open) FROM shop'
    """
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1:
        return sql
    try:
        for node in reversed(list(trees[0].bfs())):  # the innermost first
            node.replace(_simpler(node))
        return bare(trees[0], schema).sql("sqlite")
    except Exception:  # whatever sqlglot's writer may raise
        return sql


def bare_names(sql: str, schema: Schema) -> str:
    """The query in its own dialect, with bare names of tables."""
    trees = parse_or_nothing(sql, schema.dialect) if any(table.path for table in schema.tables) else []
    try:
        return bare(trees[0], schema).sql(schema.dialect) if len(trees) == 1 else sql
    except Exception:  # whatever sqlglot's writer may raise
        return sql


def _simpler(node: exp.Expr) -> exp.Expr:
    """The node as SQLite's dialect needs it; the same where it is alike there. What is inside it is SQLite's already."""
    inner: exp.Expr = node.this
    if isinstance(node, exp.Alias) and (inner.sql() == node.alias or _is_any(inner, node.alias)):
        return inner.this if isinstance(inner, exp.Min) else inner  # the name that any value of a group was given
    if isinstance(node, exp.AnyValue | exp.ArgMax | exp.ArgMin | exp.TryCast | exp.IgnoreNulls):
        return inner
    if isinstance(node, exp.Sum | exp.Avg) and isinstance(inner, exp.Cast):
        return type(node)(this=inner.this)
    if isinstance(node, exp.ILike):
        return exp.Like(**node.args)
    if isinstance(node, exp.IntDiv | exp.Div):
        return exp.Div(this=_uncast(node.this), expression=node.expression, typed=True, safe=True)
    if isinstance(node, exp.Ordered):
        node.set("nulls_first", not node.args.get("desc"))  # SQLite's own order, which is not written
    return _one_of_a_group(node) or _looked_at(node) or _moment(node) or node


def _one_of_a_group(node: exp.Expr) -> exp.Expr | None:
    """The column of which an array or a list of a group's values gives the first."""
    listed = node.find(exp.ArrayAgg, exp.GroupConcat) if isinstance(node, exp.Bracket | exp.SubstringIndex) else None
    return listed.find(exp.Column) if listed else None


def _looked_at(node: exp.Expr) -> exp.Expr | None:
    """What is cast only where it looks as it must, without the look."""
    only = node.args["ifs"] if isinstance(node, exp.Case) and not node.this and not node.args.get("default") else []
    if len(only) != 1 or not isinstance(only[0].this, exp.RegexpLike):
        return None
    is_number = not isinstance(only[0].args["true"], exp.Date | exp.Anonymous)
    found: exp.Expr = only[0].this.this if is_number else only[0].args["true"]
    return found


_READERS = {exp.DType.TIMESTAMP: "DATETIME", exp.DType.DATETIME: "DATETIME", exp.DType.TIME: "TIME"}


def _moment(node: exp.Expr) -> exp.Expr | None:
    """A date in SQLite's functions; None for anything else."""
    if isinstance(node, exp.Anonymous) and node.name.upper() == "JULIAN":
        return _called("JULIANDAY", *node.expressions)
    if isinstance(node, exp.Paren) and (found := _julian(node.this)) is not None:
        return _called("JULIANDAY", found)
    if isinstance(node, exp.Cast) and node.to.this == exp.DType.DATE:
        return exp.Date(this=node.this)
    if isinstance(node, exp.Cast) and node.to.this in _READERS:
        return _called(_READERS[node.to.this], node.this)
    if isinstance(node, exp.Extract) and node.name.upper() == "JULIAN":
        return _called("JULIANDAY", node.expression)
    if isinstance(node, exp.Extract) and (part := _PARTS.get(node.name.upper())):
        return exp.cast(exp.TimeToStr(this=node.expression, format=exp.Literal.string(part)), "INTEGER")
    if isinstance(node, exp.Add) and isinstance(node.expression, exp.Interval):
        return _stepped(node.this, node.expression.this, node.expression)
    if isinstance(node, exp.DateAdd):
        return _stepped(node.this, node.expression, node)
    if isinstance(node, exp.TimestampTrunc | exp.DateTrunc):
        return _called("DATETIME", node.this, exp.Literal.string(f"start of {node.args['unit'].name.lower()}"))
    return None


def _julian(sum_: exp.Expr) -> exp.Expr | None:
    """The moment whose Julian day MySQL reckons from seconds."""
    is_julian = isinstance(sum_, exp.Add) and sum_.expression.name == JULIAN_1970
    seconds = sum_.find(exp.TimestampDiff) if is_julian else None
    return seconds.this if seconds else None


def _stepped(moment: exp.Expr, count: exp.Expr, unit: exp.Expr) -> exp.Expr:
    number = int(count.sql().strip("'()"))
    return _called("DATETIME", moment, exp.Literal.string(f"{number:+} {unit.args['unit'].name.lower()}"))


def _called(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[each.copy() for each in arguments])


def _is_any(node: exp.Expr, name: str) -> bool:
    """Whether the smallest value stands for any, as it has the name of the column itself."""
    return isinstance(node, exp.Min) and isinstance(node.this, exp.Column) and node.this.name == name


def _uncast(node: exp.Expr) -> exp.Expr:
    """The operand without the cast that makes a division give fractions."""
    return node.this if isinstance(node, exp.Cast) and node.to.is_type("DOUBLE") else node
