"""Counts the rows where the question asks how many there are: "how many albums" is a number, and no list of albums."""

from sqlglot import exp

from tools.linking.word_forms import name_stems, name_words, split, stem
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing

_COUNTING = (("how", "many"), ("number", "of"))
_SHAPED = ("group", "having", "order", "limit", "offset", "distinct")
_LONGEST = 3  # words of a table's name


def count_rows(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with COUNT(*) for its SELECT list; None unless the question begins with a count of a table's rows, and the
    statement lists one column, without groups or an order. A column that has the table's name may hold the number.

    >>> from tools.schema import Column, Table
    >>> line = Table("order_lines", (Column("returned", "DATE"), Column("reason", "TEXT")))
    >>> sql = "SELECT returned FROM order_lines WHERE reason = 'late'"
    >>> count_rows(sql, Schema((line,), "duckdb"), "How many order lines came back late?")
    "SELECT COUNT(*) FROM order_lines WHERE reason = 'late'"
    """
    trees = parse_or_nothing(sql, schema.dialect)
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or any(select.args.get(part) for part in _SHAPED):
        return None
    listed = [entry.unalias() for entry in select.expressions]
    counted = _counted(question, schema)
    if len(listed) != 1 or not isinstance(listed[0], exp.Column | exp.Star) or not counted:
        return None
    if counted <= name_stems(listed[0].name):
        return None
    select.set("expressions", [exp.Count(this=exp.Star())])
    return select.sql(schema.dialect)


def _counted(question: str, schema: Schema) -> frozenset[str]:
    """The stems of a table's name, which is no column's, after "how many" at the question's head; empty if there is none."""
    words = [word.key for word in split(question)]
    tables = {tuple(map(stem, name_words(table.name))) for table in schema.tables}
    columns = {tuple(map(stem, name_words(column.name))) for table in schema.tables for column in table.columns}
    names = (tuple(map(stem, words[2 : 2 + size])) for size in range(_LONGEST, 0, -1))
    return frozenset(next((name for name in names if tuple(words[:2]) in _COUNTING and name in tables - columns), ()))
