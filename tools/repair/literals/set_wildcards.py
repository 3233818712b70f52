"""Gives the pattern of LIKE the wildcards that the question says: what starts with Orbit is LIKE 'Orbit%'."""

import re

from sqlglot import exp

from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing

_FORMS = (
    (re.compile(r"\b(?:start|begin)(?:s|ning|ing)? (?:with|from|by)\b", re.I), "{}%"),
    (re.compile(r"\bend(?:s|ing)? (?:with|in|by)\b", re.I), "%{}"),
    (re.compile(r"\b(?:contain(?:s|ing)?|includ(?:e|es|ing)|substring)\b", re.I), "%{}%"),
)


def set_wildcards(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with LIKE's pattern as the question says; None if it is, or if either has several or none.

    >>> set_wildcards("SELECT name FROM item WHERE code LIKE '2'", Schema((), "sqlite"), "Which codes start with 2?")
    "SELECT name FROM item WHERE code LIKE '2%'"
    """
    trees = parse_or_nothing(sql, schema.dialect)
    forms = [form for words, form in _FORMS if words.search(question)]
    likes = [like for tree in trees for like in tree.find_all(exp.Like, exp.ILike)]
    if len(trees) != 1 or len(forms) != 1 or len(likes) != 1 or not isinstance(likes[0].expression, exp.Literal):
        return None
    text = likes[0].expression.name
    pattern = forms[0].format(text.strip("%"))
    if pattern == text or "%" in text.strip("%") or "_" in text:
        return None
    likes[0].expression.replace(exp.Literal.string(pattern))
    return trees[0].sql(schema.dialect)
