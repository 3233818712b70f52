"""The parsed form of a query that Spider's exact match compares, and its tokens. `eval/scoring/spider/parse.py` parses.

Columns are "table.column" in lower case, or "*". The parser accepts exactly what the official one does: one set operation
per level, aliases only with AS and only of tables, no CASE, no window, no IS NULL. Spider's figures depend on that.
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
    """A column, perhaps aggregated. `distinct` is None if it must not count."""

    aggregate: str
    column: str
    distinct: bool | None


@dataclass(frozen=True, slots=True)
class Expression:
    """One column, or two with an arithmetic operator ("" and None for one column)."""

    operator: str
    left: ColumnUse
    right: ColumnUse | None


@dataclass(frozen=True, slots=True)
class Condition:
    """`left operator first`; `second` is BETWEEN's upper bound. Both are None if values must not count."""

    negated: bool
    operator: str
    left: Expression
    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Query:
    """One SELECT and the query that a set operation appends to it.

    Conditions and the words between them are in one flat tuple, because the official rules count positions: even positions
    are read as conditions, odd ones as "and" or "or". `order` is None without ORDER BY; its direction is the last one
    written. LIMIT counts only as present or absent.
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

# Stands for a prediction that cannot be parsed.
EMPTY_QUERY = Query(False, (), (), (), (), (), (), None, False, None)


class UnreadableError(ValueError):
    """The text is outside the grammar that exact match knows."""


# Words break at these, as in NLTK's word tokenizer, which the official script uses (its rules for English contractions
# such as "cannot" are not imitated). A comma or colon before a digit stays within the word.
_BREAKS = re.compile(r"""\.{2,}|`+|--|[,:](?!\d)|[;@\#$%&‒–—―?!*«»“”‘’„\[\](){}<>]""")
_FINAL_PERIOD = re.compile(r"""(?<=[^.])\.(?=[\])}>"'»”’\s]*$)""")
_STRING = re.compile(r'"[^"]*"')
_GLUED = {"!": "!=", ">": ">=", "<": "<="}


def words(sql: str) -> list[str]:
    """The words of `sql` in lower case; a literal is one word in double quotes, as written.

    Raises `UnreadableError` if a quote is left open. Single and double quotes are not distinguished, so O'Brien in double
    quotes does leave one open.
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
    """The tokens with "! =" joined to "!=", and likewise for < and >."""
    glued: list[str] = []
    for token in tokens:
        if token == "=" and glued and glued[-1] in _GLUED:
            glued[-1] = _GLUED[glued[-1]]
        else:
            glued.append(token)
    return glued
