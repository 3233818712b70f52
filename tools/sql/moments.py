"""SQLite's functions of dates and times, and its TOTAL, in another dialect. SQLite keeps dates as texts; a typed column needs
no cast, a text is read as a moment, and what is none becomes NULL, as in SQLite.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp, parse_one

from tools.schema import Schema
from tools.sql.scope import is_number, kind_of

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
        beside = [parent.expression if parent.this is node else parent.this]
    elif isinstance(parent, exp.Between | exp.In):
        beside = parent.expressions or [parent.args.get("low"), parent.args.get("high")]
    else:
        return False
    return all(each is not None and is_number(kind_of(each, schema)) for each in beside)


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
