"""SQL of another engine becomes SQLite's; moments of time in both."""

import re
from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp, parse_one

from tools.schema import Schema
from tools.sql.scope import is_number, kind_of, parse_or_nothing
from tools.sql.spelling import bare

_STEP = re.compile(r"([+-]?\d+)\s+(second|minute|hour|day|month|year)s?", re.IGNORECASE)
_START = re.compile(r"start of (day|month|year)", re.IGNORECASE)
_STARTS = {"day": "%Y-%m-%d", "month": "%Y-%m-01", "year": "%Y-01-01"}
JULIAN_1970 = "2440587.5"  # the Julian day on which Unix time begins
_AS_IT_IS = ("localtime", "utc", "subsec", "subsecond", "auto")
_PARTS = {"%Y": "YEAR", "%m": "MONTH", "%d": "DAY", "%H": "HOUR", "%M": "MINUTE", "%S": "SECOND"}


def moments(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Rewrites DATE, DATETIME, TIME, JULIANDAY, STRFTIME, TOTAL, 'now' and modifiers such as '+1 day'.

    Raises ValueError for modifiers that have no counterpart.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> schema = Schema((), "duckdb")
    >>> from_sqlite("SELECT JULIANDAY(ended) - JULIANDAY(begun), TIME(begun) FROM visit", schema)
    'SELECT JULIAN(TRY_CAST(ended AS TIMESTAMP)) - JULIAN(TRY_CAST(begun AS TIMESTAMP)), TRY_CAST(begun AS TIME) FROM visit'
    >>> from_sqlite("SELECT STRFTIME('%Y', 'now'), DATE()", schema)
    "SELECT STRFTIME(CAST(CURRENT_TIMESTAMP AS TIMESTAMP), '%Y'), CURRENT_DATE"
    >>> from_sqlite("SELECT DATE('now', '-1 month')", schema)
    'SELECT CAST(CURRENT_DATE + INTERVAL (-1) MONTH AS DATE)'
    """
    for difference in list(tree.find_all(exp.Sub)):
        _days_between(difference, schema)
    for node in list(tree.find_all(exp.Anonymous)):
        if rewrite := _FUNCTIONS.get(node.name.upper()):
            node.replace(rewrite(node.expressions, schema))
    for date in list(tree.find_all(exp.Date)):
        if date.this is None or _is_now(date.this):
            date.replace(exp.CurrentDate())
        elif schema.dialect != "duckdb":
            date.replace(_moment("DATE", [date.this], schema))
    for moment in list(tree.find_all(exp.TsOrDsToTimestamp)):
        if _is_now(moment.this):
            moment.set("this", exp.CurrentTimestamp())
        elif schema.dialect != "duckdb":
            moment.replace(_moment("TIMESTAMP", [moment.this], schema))
    return tree


def parts_of_moments(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Writes a part of a date as a number where it is used as one: cast, compared with a number, or reckoned with.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Table
    >>> visit = Table("visit", (Column("begun", "DATE"),))
    >>> from_sqlite("SELECT CAST(STRFTIME('%Y', begun) AS INTEGER) FROM visit", Schema((visit,), "postgres"))
    'SELECT EXTRACT(YEAR FROM begun) FROM visit'
    """
    for node in list(tree.find_all(exp.TimeToStr)):
        part, parent = _PARTS.get(node.args["format"].name), node.parent
        if part is None or parent is None:
            continue
        number = exp.Extract(this=exp.var(part), expression=node.this.copy())
        if isinstance(parent, exp.Cast) and is_number(kind_of(parent, schema)):
            parent.replace(number)
        elif _is_beside_numbers(node, parent, schema):
            node.replace(number)
    for node in list(tree.find_all(exp.TimeToStr)) if schema.dialect == "postgres" else ():
        if node.args["format"].name == "%w":  # no format of PostgreSQL's counts from Sunday, which is 0
            node.replace(exp.cast(exp.Extract(this=exp.var("DOW"), expression=node.this.copy()), "TEXT"))
    return tree


def _is_beside_numbers(node: exp.Expr, parent: exp.Expr, schema: Schema) -> bool:
    """Whether the node is compared, or reckoned, with numbers."""
    if isinstance(parent, exp.Binary):
        others = [parent.expression if parent.this is node else parent.this]
    elif isinstance(parent, exp.Between | exp.In):
        others = parent.expressions or [parent.args.get("low"), parent.args.get("high")]
    else:
        return False
    return all(each is not None and is_number(kind_of(each, schema)) for each in others)


def _is_now(node: exp.Expr) -> bool:
    return node.is_string and node.name.lower() == "now"


def _moment(kind: str, arguments: Sequence[exp.Expr], schema: Schema) -> exp.Expr:
    if not arguments or _is_now(arguments[0]):
        moment: exp.Expr = exp.CurrentDate() if kind == "DATE" else exp.cast(exp.CurrentTimestamp(), kind)
    elif schema.dialect != "duckdb" and kind_of(arguments[0], schema) == "time":
        moment = arguments[0].copy() if kind == "TIMESTAMP" else exp.cast(arguments[0].copy(), kind)
    else:
        moment = exp.TryCast(this=arguments[0].copy(), to=exp.DataType.build(kind))
    modifiers = [each for each in arguments[1:] if each.name.lower() not in _AS_IT_IS]
    for modifier in modifiers:
        moment = _modified(moment, modifier, schema)
    return exp.cast(moment, kind) if modifiers else moment


def _modified(moment: exp.Expr, modifier: exp.Expr, schema: Schema) -> exp.Expr:
    """The moment after a modifier. Raises ValueError for one without a counterpart."""
    if modifier.is_string and (step := _STEP.fullmatch(modifier.name.strip())):
        return exp.DateAdd(this=moment, expression=_number(int(step[1])), unit=exp.var(step[2].upper()))
    if modifier.is_string and (start := _START.fullmatch(modifier.name.strip())):
        if schema.dialect == "mysql":  # which has no function for it
            return exp.TimeToStr(this=moment, format=exp.Literal.string(_STARTS[start[1].lower()]))
        return exp.TimestampTrunc(this=moment, unit=exp.var(start[1].upper()))
    raise ValueError(f"modifiers of dates have no counterpart here: {modifier.sql()}")


def _number(value: int) -> exp.Expr:
    literal = exp.Literal.number(abs(value))
    return exp.Neg(this=literal) if value < 0 else literal


def _strftime(arguments: Sequence[exp.Expr], schema: Schema) -> exp.Expr:
    """With modifiers; without them the parser knows it."""
    return exp.TimeToStr(this=_moment("TIMESTAMP", arguments[1:], schema), format=arguments[0].copy())


def _julian_day(arguments: Sequence[exp.Expr], schema: Schema) -> exp.Expr:
    moment = _moment("TIMESTAMP", arguments, schema)
    if schema.dialect == "duckdb":
        return exp.Anonymous(this="JULIAN", expressions=[moment])
    if schema.dialect == "mysql":
        text = moment.sql("mysql")
        return parse_one(f"(TIMESTAMPDIFF(SECOND, '1970-01-01', {text}) / 86400.0 + {JULIAN_1970})", dialect="mysql")
    return exp.Extract(this=exp.var("JULIAN"), expression=moment)


def _days_between(node: exp.Sub, schema: Schema) -> None:
    """Two Julian days, of which the difference is meant, in dialects that have no such days."""
    sides = (node.this, node.expression)
    if schema.dialect in ("duckdb", "postgres", "mysql") or not all(map(_is_julian, sides)):
        return
    later, earlier = (exp.cast(_moment("DATE", side.expressions, schema), "DATE") for side in sides)
    node.replace(exp.DateDiff(this=later, expression=earlier, unit=exp.var("DAY")))


def _is_julian(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() == "JULIANDAY"


def _total(arguments: Sequence[exp.Expr], schema: Schema) -> exp.Expr:
    return exp.Coalesce(this=exp.Sum(this=arguments[0].copy()), expressions=[exp.Literal.number("0.0")])


_FUNCTIONS: Mapping[str, Callable[[Sequence[exp.Expr], Schema], exp.Expr]] = {
    "DATE": lambda arguments, schema: _moment("DATE", arguments, schema),
    "DATETIME": lambda arguments, schema: _moment("TIMESTAMP", arguments, schema),
    "TIME": lambda arguments, schema: _moment("TIME", arguments, schema),
    "STRFTIME": _strftime,
    "JULIANDAY": _julian_day,
    "TOTAL": _total,
}


_SQLITE_PARTS = {"YEAR": "%Y", "MONTH": "%m", "DAY": "%d", "HOUR": "%H", "MINUTE": "%M", "SECOND": "%S", "DOW": "%w"}


def to_sqlite(sql: str, schema: Schema) -> str:
    """The query in SQLite's SQL; as it is where it cannot be read.

    Columns stand bare with aggregates, LIKE ignores case, and texts are compared with numbers without casts:

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
    return _one_of_a_group(node) or _looked_at(node) or _as_sqlite_date(node) or node


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


def _as_sqlite_date(node: exp.Expr) -> exp.Expr | None:
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
    if isinstance(node, exp.Extract) and (part := _SQLITE_PARTS.get(node.name.upper())):
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
