"""The shape that Spider's exact match compares, and the words that it is read from. Parsing is `eval/scoring/spider/parse.py`.

Columns are "table.column" in lower case, or "*". The reader is the official one's equal in what it accepts: one set
operation per level, aliases only by AS and only of tables, no CASE, no window, no IS NULL. Spider's figures rest on it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Table name -> column names, all in lower case.
Tables = Mapping[str, tuple[str, ...]]

AGGREGATES = ("max", "min", "count", "sum", "avg")
ARITHMETIC = ("-", "+", "*", "/")
COMPARISONS = ("not", "between", "=", ">", "<", ">=", "<=", "!=", "in", "like", "is", "exists")
SET_OPERATIONS = ("intersect", "union", "except")
CLAUSES = ("select", "from", "where", "group", "order", "limit", *SET_OPERATIONS)


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A column, maybe aggregated. `distinct` is None where it must not count."""

    aggregate: str
    column: str
    distinct: bool | None


@dataclass(frozen=True, slots=True)
class Expression:
    """One column, or two joined by an arithmetic operator ("" and None otherwise)."""

    operator: str
    left: ColumnUse
    right: ColumnUse | None


@dataclass(frozen=True, slots=True)
class Condition:
    """`left operator first`; `second` is BETWEEN's upper bound. Bounds are None where values must not count."""

    negated: bool
    operator: str
    left: Expression
    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Query:
    """One SELECT and the query that a set operation appends to it.

    Conditions stand in one flat tuple with the words between them, as the official rules count positions: even places
    are read as conditions, odd ones as "and" or "or". `order` is None without ORDER BY; its direction is the last one
    written. Of LIMIT only the presence counts.
    """

    distinct: bool
    select: tuple[tuple[str, Expression], ...]
    tables: "tuple[str | Query, ...]"
    joins: "Conditions"
    where: "Conditions"
    group: tuple[ColumnUse, ...]
    having: "Conditions"
    order: tuple[str, tuple[Expression, ...]] | None
    limited: bool
    set_operation: "tuple[str, Query] | None"


Operand = Query | ColumnUse | float | str | None
Conditions = tuple[Condition | str, ...]

# What stands for a prediction that cannot be read.
EMPTY_QUERY = Query(False, (), (), (), (), (), (), None, False, None)


class UnreadableError(ValueError):
    """The text is outside of the grammar that exact match knows."""


# Words break at these, as in NLTK's word tokenizer that the official script uses (its English contractions, "cannot"
# and the like, are not imitated). A comma or colon before a digit stays within the word.
_BREAKS = re.compile(r"""\.{2,}|`+|--|[,:](?!\d)|[;@\#$%&‒–—―?!*«»“”‘’„\[\](){}<>]""")
_FINAL_PERIOD = re.compile(r"""(?<=[^.])\.(?=[\])}>"'»”’\s]*$)""")
_STRING = re.compile(r'"[^"]*"')
_GLUED = {"!": "!=", ">": ">=", "<": "<="}


def words(sql: str) -> list[str]:
    """The words of `sql` in lower case; a literal is one word in double quotes, as written.

    Raises `UnreadableError` when a quote is left open. Both kinds of quotes count as one, so O'Brien in double quotes
    does leave one open.
    """
    text = sql.replace("'", '"')
    if text.count('"') % 2:
        raise UnreadableError("a quote is left open")
    literals = _STRING.findall(text)
    numbers = iter(range(len(literals)))
    text = _STRING.sub(lambda _: f"\ue000{next(numbers)}\ue000", text)
    text = _BREAKS.sub(lambda match: f" {match.group()} ", _FINAL_PERIOD.sub(" . ", text))
    placeholders = {f"\ue000{number}\ue000": literal for number, literal in enumerate(literals)}
    return _glue([placeholders.get(word, word.lower()) for word in text.split()])


def _glue(tokens: list[str]) -> list[str]:
    """! = becomes !=, and so for < and >."""
    glued: list[str] = []
    for token in tokens:
        if token == "=" and glued and glued[-1] in _GLUED:
            glued[-1] = _GLUED[glued[-1]]
        else:
            glued.append(token)
    return glued
