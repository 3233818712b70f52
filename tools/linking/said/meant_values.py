"""Leaves out values that a question hardly means: "products" is not the level 'Product' where columns are about products.

A word of the schema that stands alone, without quotes or capitals, says what is asked about. It may still be a value where a
column's own name has it, `good_or_bad`, and right behind "as", "for" or "in": "described as research".
"""

from collections.abc import Sequence

from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import name_stems, split, stem, word_set
from tools.schema import Schema

_KINDS = word_set("as for in")
_MARKED = 0.9  # least score of a phrase in quotes or capitals, or that has a meaning of its own, such as a gender


def meant_values(values: Sequence[ValueMatch], schema: Schema, question: str) -> tuple[ValueMatch, ...]:
    """The matches without those of a single plain word that is a word of the schema, or its plural.

    >>> from tools.schema import Column, Table
    >>> level = Table("levels", (Column("level_name", "TEXT"), Column("product_count", "INTEGER")))
    >>> found = [ValueMatch("levels", "level_name", "Product", phrase, score) for phrase, score in
    ...     (("products", 0.82), ("Product", 1.0))]
    >>> left = meant_values(found, Schema((level,), "sqlite"), "Which products are on the level Product?")
    >>> [match.phrase for match in left]
    ['Product']
    """
    names = [name for table in schema.tables for name in (table.name, *(column.name for column in table.columns))]
    known = frozenset[str]().union(*map(name_stems, names))
    return tuple(match for match in values if _is_meant(match, known, question))


def _is_meant(match: ValueMatch, known: frozenset[str], question: str) -> bool:
    words = split(match.phrase)
    if match.score >= _MARKED or len(words) != 1:
        return True
    word = stem(words[0].key)
    if word not in known or word in name_stems(match.column):
        return True
    before = split(question[: max(0, question.find(match.phrase))])
    return bool(before) and before[-1].key in _KINDS
