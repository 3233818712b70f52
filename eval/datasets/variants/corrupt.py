"""Makes wrong SQL from right SQL with one mistake at a time, as small models make them. Callers find out what it causes."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from sqlglot import exp

from eval.datasets.golds.gold_sql import identifier
from tools.schema import Schema

Corruption = Callable[[exp.Query, Schema, Random], bool]
"""Changes the tree in place; returns False if there is nothing to change."""


def wrong_column(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Replace a column by one that another table of the schema has."""
    column = _any_column(tree, rng)
    others = sorted({c.name for table in schema.tables for c in table.columns})
    if column is None or not others:
        return False
    column.set("this", identifier(rng.choice(others)))
    return True


def invented_column(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Replace a column by a plausible one that does not exist: `singer_name` for name, `name` for singer_name."""
    column = _any_column(tree, rng)
    if column is None:
        return False
    table = rng.choice([table.name for table in schema.tables])
    head, _, tail = column.name.partition("_")
    column.set("this", identifier(rng.choice([f"{table}_{column.name}", tail or head, f"{head}_id", f"{head}_name"])))
    return True


def wrong_table(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Read the columns of one table from another."""
    tables = [node for node in tree.find_all(exp.Table) if schema.table(node.name)]
    others = [table.name for table in schema.tables]
    if not tables or len(others) < 2:
        return False
    table = rng.choice(tables)
    table.set("this", identifier(rng.choice([name for name in others if name != table.name])))
    return True


def wrong_qualifier(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Write `singer.title` for `concert.title`, or `T2.name` if there is no T2."""
    columns = [column for column in tree.find_all(exp.Column) if column.table]
    if not columns:
        return False
    column = rng.choice(columns)
    names = [table.name for table in schema.tables] + ["T1", "T2"]
    column.set("table", identifier(rng.choice([name for name in names if name != column.table])))
    return True


def missing_join(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Leave out a joined table, but not its columns."""
    selects = [select for select in tree.find_all(exp.Select) if select.args.get("joins")]
    if not selects:
        return False
    joins = rng.choice(selects).args["joins"]
    joins.remove(rng.choice(joins))
    return True


def other_aggregate(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Write SUM for COUNT, in HAVING or in the output."""
    aggregates = list(tree.find_all(exp.Count, exp.Sum, exp.Avg, exp.Max, exp.Min))
    if not aggregates:
        return False
    node = rng.choice(aggregates)
    other = rng.choice([kind for kind in (exp.Count, exp.Sum, exp.Avg, exp.Max, exp.Min) if not isinstance(node, kind)])
    node.replace(other(this=node.this.copy()))
    return True


# Corruptions that do not bind: for this reason the agent asks again.
BINDING: Mapping[str, Corruption] = {
    "wrong column": wrong_column,
    "invented column": invented_column,
    "wrong table": wrong_table,
    "wrong qualifier": wrong_qualifier,
    "missing join": missing_join,
    "other aggregate": other_aggregate,
}


def corrupted(tree: exp.Query, schema: Schema, kinds: Sequence[Corruption], rng: Random) -> exp.Query | None:
    """A copy with one mistake of these kinds; None if none applies."""
    copy = tree.copy()
    for corrupt in rng.sample(kinds, len(kinds)):
        if corrupt(copy, schema, rng) and copy != tree:
            return copy
    return None


def _any_column(tree: exp.Query, rng: Random) -> exp.Column | None:
    columns = [column for column in tree.find_all(exp.Column) if not column.is_star]
    return rng.choice(columns) if columns else None
