"""Takes MIN or MAX as the question says: the oldest album has the least date of release, and not the greatest."""

from sqlglot import exp

from tools.repair.shape.set_direction import superlative
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing


def set_extreme(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with the other of MIN and MAX where a column is held equal to its own extreme, and the question's
    superlative allows one of them only; None if nothing changes, or if there are several extremes.

    >>> sql = "SELECT title FROM album WHERE year = (SELECT MAX(year) FROM album)"
    >>> set_extreme(sql, Schema((), "sqlite"), "Which album is the oldest?")
    'SELECT title FROM album WHERE year = (SELECT MIN(year) FROM album)'
    """
    trees = parse_or_nothing(sql, schema.dialect)
    extremes = [one for tree in trees for one in tree.find_all(exp.Max, exp.Min)]
    if len(trees) != 1 or len(extremes) != 1 or not _is_own(extremes[0]):
        return None
    highest, lowest = superlative(question, extremes[0].this, schema)
    wanted = exp.Max if highest else exp.Min
    if highest == lowest or isinstance(extremes[0], wanted):
        return None
    extremes[0].replace(wanted(this=extremes[0].this))
    return trees[0].sql(schema.dialect)


def _is_own(extreme: exp.Expr) -> bool:
    """Whether it is all that a sub-query gives, and the same column is held equal to that."""
    query = extreme.find_ancestor(exp.Subquery)
    whole = query is not None and isinstance(query.this, exp.Select) and query.this.expressions == [extreme]
    compared = query.parent if whole and query is not None else None
    own = compared.this if isinstance(compared, exp.EQ) else None
    return isinstance(own, exp.Column) and isinstance(extreme.this, exp.Column) and own.name == extreme.this.name
