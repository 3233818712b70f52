"""Compares a column with what its type can hold: "one-star reviews" have `rating = 1`, and a date is never "scratched"."""

import re

from sqlglot import exp

from tools.linking.word_forms import NUMBER_WORDS, keys
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import is_number, kind_of

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DIGITS = re.compile(r"%\d+%?|\d+%")  # digits of a number, not the number
_LETTERS = re.compile(r"[a-z]{3,}", re.I)
_COMPARISONS = (exp.EQ, exp.Like, exp.ILike)


def fit_types(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with a column of numbers held equal to the only number in a text that it is compared with, if the question
    says it, and without a condition that holds a date equal to a word that another condition has; None if nothing changes.

    >>> from tools.schema import Column, Table
    >>> line = Table("line", (Column("rating", "INTEGER"), Column("returned", "DATE"), Column("reason", "TEXT")))
    >>> schema = Schema((line,), "duckdb")
    >>> fit_types("SELECT * FROM line WHERE CAST(rating AS TEXT) ILIKE 'one'", schema, "Which have one star?")
    'SELECT * FROM line WHERE rating = 1'
    >>> fit_types("SELECT * FROM line WHERE CAST(returned AS TEXT) = 'late' AND reason = 'late'", schema, "Came back late?")
    "SELECT * FROM line WHERE reason = 'late'"
    """
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1:
        return None
    changed = [_changed(each, schema, question) for each in list(trees[0].find_all(*_COMPARISONS))]
    return trees[0].sql(schema.dialect) if any(changed) else None


def _changed(comparison: exp.Expr, schema: Schema, question: str) -> bool:
    column, text = _column(comparison.this), comparison.expression
    if column is None or not (isinstance(text, exp.Literal) and text.is_string):
        return False
    kind = kind_of(column, schema)
    if is_number(kind):
        number = _number(text.name, question)
        if number is not None:
            comparison.replace(exp.EQ(this=column.copy(), expression=exp.Literal.number(number)))
        return number is not None
    return kind == "time" and _is_repeated(comparison, text)


def _column(node: exp.Expr) -> exp.Column | None:
    """The column that is compared, perhaps as text."""
    inner = node.this if isinstance(node, exp.Cast | exp.Lower) else node
    return inner if isinstance(inner, exp.Column) else None


def _number(text: str, question: str) -> str | None:
    """The only number in a text, in figures or as a word, that the question says in either way."""
    found = _numbers(text)
    is_said = len(found) == 1 and found[0] in _numbers(question)
    return found[0] if is_said and not _DIGITS.fullmatch(text) else None


def _numbers(text: str) -> list[str]:
    """Those of a text, in figures."""
    words = (str(NUMBER_WORDS.index(word)) for word in keys(text) if word in NUMBER_WORDS)
    return [*_NUMBER.findall(text), *words]


def _is_repeated(comparison: exp.Expr, text: exp.Literal) -> bool:
    """Whether the comparison was dropped: its text is no date, and another condition beside it has the same one."""
    above = comparison.parent
    if not isinstance(above, exp.And) or _NUMBER.search(text.name) or not _LETTERS.search(text.name):
        return False
    other = above.expression if above.this is comparison else above.this
    if not any(each.name == text.name for each in other.find_all(exp.Literal)):
        return False
    above.replace(other.copy())
    return True
