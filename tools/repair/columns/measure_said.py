"""Measures the column that the question names: the average rating is no average price."""

import re

from sqlglot import exp

from tools.linking.word_forms import keys, name_stems, name_words, stem
from tools.schema import Column, Schema, Table
from tools.sql.only_column import only_column
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import is_number, sources, type_kind

_SAID = (
    (exp.Avg, r"average|mean|avg"),
    (exp.Sum, r"total|sum of(?: the)?"),
    (exp.Max, r"maximum|highest|largest|greatest"),
    (exp.Min, r"minimum|lowest|smallest"),
)
_PHRASES = tuple((kind, re.compile(rf"\b(?:{words})\s+(\w+(?:\s+\w+){{0,3}})", re.I)) for kind, words in _SAID)


def measure_said(sql: str, schema: Schema, question: str) -> str | None:
    """The statement whose only aggregate has the column of numbers that the question names behind "average" and the like; None
    if the question names the one that it has, or none, or if FROM does not have it once.

    >>> from tools.schema import Column, Table
    >>> review = Table("review", (Column("price", "REAL"), Column("rating", "INTEGER"), Column("album", "TEXT")))
    >>> sql = "SELECT album, AVG(price) FROM review GROUP BY album"
    >>> measure_said(sql, Schema((review,), "sqlite"), "What is the average rating of each album?")
    'SELECT album, AVG(rating) FROM review GROUP BY album'
    """
    trees = parse_or_nothing(sql, schema.dialect)
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select):
        return None
    measures = [measure for measure in select.find_all(exp.AggFunc) if measure.parent_select is select]
    if len(measures) != 1 or not isinstance(column := measures[0].this, exp.Column):
        return None
    if _is_said(column.name, keys(question)):
        return None
    wanted = _named(select, schema, type(measures[0]), question)
    if wanted is None or wanted.name.lower() == column.name.lower():
        return None
    column.replace(wanted)
    return select.sql(schema.dialect)


def _is_said(name: str, words: tuple[str, ...]) -> bool:
    """Whether the words of a question have those of a column's name, or their letters its letters: `fastestlapspeed`."""
    return name_stems(name) <= set(map(stem, words)) or "".join(name_words(name)) in "".join(words)


def _named(select: exp.Select, schema: Schema, kind: type[exp.Expr], question: str) -> exp.Column | None:
    """The only column of numbers in FROM whose name follows a word for this kind of measure."""
    phrases = [
        tuple(map(stem, keys(said))) for each, pattern in _PHRASES if each is kind for said in pattern.findall(question)
    ]

    def is_said(table: Table, column: Column) -> bool:
        return is_number(type_kind(column.type)) and any(_begins(phrase, column.name) for phrase in phrases)

    found = only_column(sources(select, schema), is_said)
    return found and found[1]


def _begins(phrase: tuple[str, ...], name: str) -> bool:
    """Whether the phrase begins with a column's name."""
    words = tuple(map(stem, name_words(name)))
    return phrase[: len(words)] == words
