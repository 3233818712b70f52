"""Adds up a column of numbers where "how many" or "the most" asks for it: beds are the sum of `beds`, and no number of rows."""

from collections.abc import Sequence

from sqlglot import exp

from tools.linking.match_values import ValueMatch
from tools.linking.said.phrased_columns import counted_columns
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import sources


def sum_counted(sql: str, schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> str | None:
    """The statement with SUM of the column that the question counts in place of its only COUNT; None unless it shows the COUNT
    and has no groups, or sorts groups by it, and the column is one, unused, and of a table in the same FROM.

    >>> from tools.schema import Column, Table
    >>> room = Table("room", (Column("beds", "INTEGER"), Column("decor", "TEXT")))
    >>> sum_counted("SELECT COUNT(*) FROM room WHERE decor = 'modern'", Schema((room,), "sqlite"), "How many beds are modern?")
    "SELECT SUM(beds) FROM room WHERE decor = 'modern'"
    """
    trees = parse_or_nothing(sql, schema.dialect)
    counts = [count for tree in trees for count in tree.find_all(exp.Count)]
    places = [place for places in counted_columns(schema, question, values) for place in places]
    select = _counting(counts[0]) if len(counts) == 1 else None
    if len(places) != 1 or select is None or len(trees) != 1:
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


def _counting(count: exp.Expr) -> exp.Select | None:
    """The query without groups that shows the COUNT, or the one with groups that is sorted by it."""
    if isinstance(count.parent, exp.Ordered):
        sorted_ = count.parent_select
        return sorted_ if isinstance(sorted_, exp.Select) and sorted_.args.get("group") else None
    shown = count.parent
    return shown if isinstance(shown, exp.Select) and not shown.args.get("group") else None
