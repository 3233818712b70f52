"""Converts a number to the unit of its column: "less than 3 minutes" is `duration_seconds < 180`."""

import re
from decimal import Decimal
from functools import cache

from sqlglot import exp

from tools.linking.word_forms import NUMBER_WORDS, name_words
from tools.schema import Column, Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between)
_UNITS = """
    time 0.001 millisecond milliseconds millis msec ms
    time 1 second seconds sec secs
    time 60 minute minutes min mins
    time 3600 hour hours hr hrs
    time 86400 day days
    time 604800 week weeks
    length 0.001 millimetre millimetres millimeter millimeters mm
    length 0.01 centimetre centimetres centimeter centimeters cm
    length 1 metre metres meter meters m
    length 1000 kilometre kilometres kilometer kilometers km kms
    mass 0.001 gram grams g
    mass 1 kilogram kilograms kilo kilos kg kgs
    mass 1000 tonne tonnes
    data 1 byte bytes
    data 1000 kilobyte kilobytes kb
    data 1000000 megabyte megabytes mb
    data 1000000000 gigabyte gigabytes gb
"""  # those that have one meaning each: a day of work, a ton, an inch of what
_SAID = re.compile(r"(\d[\d,]*(?:\.\d+)?|" + "|".join(NUMBER_WORDS) + r")[ -]?([a-z]+)\b", re.IGNORECASE)
_IN_UNIT = re.compile(r"\bin ([a-z]+)\b", re.IGNORECASE)

Unit = tuple[str, Decimal]  # a dimension, and the unit's size


@cache
def _units() -> dict[str, Unit]:
    lines = (line.split() for line in _UNITS.strip().splitlines())
    return {word: (dimension, Decimal(size)) for dimension, size, *words in lines for word in words}


def convert_units(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with numbers in the units of their columns; None if nothing changes. A column's unit is the last word of
    its name, or follows "in" in its comment.

    >>> from tools.schema import Table
    >>> track = Table("track", (Column("duration_seconds", "INTEGER"),))
    >>> sql = "SELECT COUNT(*) FROM track WHERE duration_seconds < 3"
    >>> convert_units(sql, Schema((track,), "duckdb"), "How many tracks last less than 3 minutes?")
    'SELECT COUNT(*) FROM track WHERE duration_seconds < 180'
    """
    said = _said(question)
    trees = parse_or_nothing(sql, schema.dialect) if said else []
    changed = [_converted(node, schema, said) for tree in trees[:1] for node in list(tree.find_all(*_COMPARISONS))]
    return trees[0].sql(schema.dialect) if any(changed) else None


def _said(question: str) -> dict[Decimal, set[Unit]]:
    """The units of each number that the question says with a unit."""
    said: dict[Decimal, set[Unit]] = {}
    for number, word in _SAID.findall(question):
        if unit := _units().get(word.lower()):
            said.setdefault(_value(number.lower()), set()).add(unit)
    return said


def _value(number: str) -> Decimal:
    return Decimal(NUMBER_WORDS.index(number) if number in NUMBER_WORDS else number.replace(",", ""))


def _converted(node: exp.Expr, schema: Schema, said: dict[Decimal, set[Unit]]) -> bool:
    """Whether a number of the comparison was changed."""
    unit = _unit_of(node.this, schema)
    between = isinstance(node, exp.Between)
    numbers = [node.args["low"], node.args["high"]] if between else [node.expression]
    return unit is not None and sum(_convert(number, unit, said) for number in numbers) > 0  # all, not until the first


def _convert(number: exp.Expr, unit: Unit, said: dict[Decimal, set[Unit]]) -> bool:
    if not isinstance(number, exp.Literal) or number.is_string:
        return False
    value = Decimal(number.name)
    units = said.get(value, set())
    (given,) = units if len(units) == 1 else (unit,)
    if given == unit or given[0] != unit[0]:
        return False
    number.replace(exp.Literal.number(f"{(value * given[1] / unit[1]).normalize():f}"))
    return True


def _unit_of(name: exp.Expr, schema: Schema) -> Unit | None:
    """The unit of a column, or of an aggregate of it that keeps its unit."""
    if isinstance(name, (exp.Avg, exp.Sum, exp.Max, exp.Min)):
        return _unit_of(name.this, schema)
    ref = column_ref(name, schema) if isinstance(name, exp.Column) else None
    table = schema.table(ref[0]) if ref else None
    column = table.column(ref[1]) if table and ref else None
    return _written_unit(column) if column else None


def _written_unit(column: Column) -> Unit | None:
    words = name_words(column.name)
    noted = _IN_UNIT.findall(column.comment)
    named = [words[-1]] if words and (len(words) > 1 or len(words[0]) > 2) else []  # a column m is no length
    return next((unit for word in (*named, *noted) if (unit := _units().get(word.lower()))), None)
