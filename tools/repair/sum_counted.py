"""Adds up a column of numbers where "how many" asks for it: "how many beds" is the sum of `beds`, and no number of rows."""

from collections.abc import Sequence

from sqlglot import exp

from tools.linking.match_values import ValueMatch
from tools.linking.said.phrased_columns import counted_columns
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import sources


def sum_counted(sql: str, schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> str | None:
    """The statement with SUM of the column that the question counts in place of its only COUNT; None unless there are no
    groups, and the column is one, unused, and of a table in the same FROM.

    >>> from tools.schema import Column, Table
    >>> room = Table("room", (Column("beds", "INTEGER"), Column("decor", "TEXT")))
    >>> sum_counted("SELECT COUNT(*) FROM room WHERE decor = 'modern'", Schema((room,), "sqlite"), "How many beds are modern?")
    "SELECT SUM(beds) FROM room WHERE decor = 'modern'"
    """
    trees = parse_or_nothing(sql, schema.dialect)
    counts = [count for tree in trees for count in tree.find_all(exp.Count)]
    places = [place for places in counted_columns(schema, question, values) for place in places]
    select = counts[0].parent if len(counts) == 1 else None
    if len(places) != 1 or not isinstance(select, exp.Select) or select.args.get("group") or len(trees) != 1:
        return None
    table, column = places[0]
    every = sources(select, schema)
    own = [(source, source.table) for source in every if source.table and source.table.name.lower() == table]
    if len(own) != 1 or any(name.name.lower() == column for name in trees[0].find_all(exp.Column)):
        return None
    source, owner = own[0]
    spelled = next(each.name for each in owner.columns if each.name.lower() == column)
    qualifier = source.alias if len(every) > 1 else None
    counts[0].replace(exp.Sum(this=exp.column(spelled, table=qualifier)))
    return trees[0].sql(schema.dialect)
