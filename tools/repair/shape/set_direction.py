"""Sets the direction of ORDER BY to what the question says, where its words allow one direction only."""

import re

from sqlglot import exp

from tools.linking.word_forms import name_words
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import column_ref, type_kind

_DOWN = re.compile(
    r"\b(?:descending|desc|reverse(?:d)? (?:alphabetical )?order|(?:from )?(?:high|large|old)(?:est)? to)\b", re.I
)
_UP = re.compile(
    r"\b(?:ascending|asc|alphabetical(?:ly)?|lexicographical(?:ly)?|(?:from )?(?:low|small|young)(?:est)? to)\b", re.I
)
_MOST = re.compile(r"\b(?:most|highest|largest|biggest|greatest|maximum|top)\b", re.I)
_LEAST = re.compile(r"\b(?:least|fewest|lowest|smallest|minimum)\b", re.I)
_AMBIGUOUS = re.compile(r"rank|position|place|date|year|time|birth|day|level|order|grade", re.I)  # 1 may be the highest
_EARLY = re.compile(r"\b(?:oldest|earliest)\b", re.I)
_LATE = re.compile(r"\b(?:newest|latest|most recent(?:ly)?)\b", re.I)
_OLD, _YOUNG = re.compile(r"\boldest\b", re.I), re.compile(r"\byoungest\b", re.I)
_BORN = frozenset({"birth", "birthday", "birthdate", "dob"})
_DATED = _BORN | {"date", "year"}
_RECENT = re.compile(r"\b(?:most|least) (?:recent|common|popular|\w+ly)\b|\bat (?:most|least)\b", re.I)


def set_direction(sql: str, schema: Schema, question: str) -> str | None:
    """The statement sorted as the question says; None if it is, or if words or statement leave it open.

    Superlatives count only where LIMIT takes the first row, and the key is one for which more is higher:

    >>> set_direction("SELECT name FROM singer ORDER BY age LIMIT 1", Schema((), "sqlite"), "Who has the highest age?")
    'SELECT name FROM singer ORDER BY age DESC LIMIT 1'
    >>> set_direction("SELECT title FROM song ORDER BY year DESC LIMIT 1", Schema((), "sqlite"), "What is the oldest song?")
    'SELECT title FROM song ORDER BY year LIMIT 1'
    >>> set_direction("SELECT name FROM song ORDER BY rank LIMIT 1", Schema((), "sqlite"), "The song of highest rank?")
    """
    trees = parse_or_nothing(sql, schema.dialect)
    orders = list(trees[0].find_all(exp.Order)) if len(trees) == 1 else []
    if len(orders) != 1 or len(orders[0].expressions) != 1:
        return None
    key = orders[0].expressions[0]
    wanted = _said(question, key, schema, limited=trees[0].find(exp.Limit) is not None)
    if wanted is None or bool(key.args.get("desc")) == wanted:
        return None
    key.set("desc", wanted or None)
    if schema.dialect == "sqlite":
        key.set("nulls_first", not wanted)  # SQLite's own order, so that nothing is written about it
    return trees[0].sql(schema.dialect)


def _said(question: str, key: exp.Expr, schema: Schema, limited: bool) -> bool | None:
    """Whether the question says descending; None unless all its words say the same."""
    down, up = bool(_DOWN.search(question)), bool(_UP.search(question))
    if not (down or up) and limited:
        down, up = superlative(question, key.this, schema)
    return down if down != up else None


def superlative(question: str, key: exp.Expr, schema: Schema) -> tuple[bool, bool]:
    """Whether a superlative of the question says that the first row has the highest key, or the lowest."""
    words = set(name_words(key.name)) if isinstance(key, exp.Column) else set()
    if _is_dated(key, schema):
        young = bool(words & _BORN) and bool(_YOUNG.search(question))
        return young or bool(_LATE.search(question)), bool(_EARLY.search(question))
    if _RECENT.search(question) or _AMBIGUOUS.search(key.sql()):
        return False, False
    old, young = ("age" in words and bool(word.search(question)) for word in (_OLD, _YOUNG))
    return old or bool(_MOST.search(question)), young or bool(_LEAST.search(question))


def _is_dated(key: exp.Expr, schema: Schema) -> bool:
    """Whether the key is a column of dates or years."""
    ref = column_ref(key, schema) if isinstance(key, exp.Column) else None
    table = schema.table(ref[0]) if ref else None
    column = table.column(ref[1]) if table and ref else None
    typed = column is not None and type_kind(column.type) == "time"
    return isinstance(key, exp.Column) and (typed or not _DATED.isdisjoint(name_words(key.name)))
