"""Makes the plan of a gold query: its tables and columns in the order of the SQL, and its skeleton."""

from sqlglot import exp

from agent.prompts.plan_format import Plan, PlannedTable
from eval.datasets.golds.gold_sql import place_of, real_tables, sql_text
from tools.schema import ColumnRef, Schema

BLANK = "_"


def plan_answer(tree: exp.Query, schema: Schema) -> Plan:
    """The plan of a query in the style; `schema` is the schema with its names."""
    tables = dict.fromkeys(name for _, name in real_tables(tree, schema))
    places = [
        place for column in tree.find_all(exp.Column, bfs=False) if (place := _needed(column, schema)) is not None
    ]
    columns = {name: tuple(dict.fromkeys(c for table, c in places if table == name)) for name in tables}
    return Plan(tuple(PlannedTable(name, columns[name]) for name in tables), skeleton(tree))


def _needed(column: exp.Column, schema: Schema) -> ColumnRef | None:
    """The column's table and name; None for a column that is only joined on, since the prompt's join lines name it."""
    joins = column.find_ancestor(exp.Join, exp.Select)
    return None if isinstance(joins, exp.Join) else place_of(column, schema)


def skeleton(tree: exp.Query) -> str:
    """The SQL with `_` for each name and literal, without join conditions and aliases, so that inner joins become commas."""
    bare = tree.copy()
    for join in list(bare.find_all(exp.Join)):
        join.set("on", None)
        join.set("using", None)
    for node in list(bare.find_all(exp.Table, exp.Column, exp.Literal)):
        if not isinstance(node.this, exp.Func):
            node.replace(exp.Star() if isinstance(node, exp.Column) and node.is_star else exp.to_identifier(BLANK))
    for alias in list(bare.find_all(exp.Alias)):
        alias.replace(alias.this)
    for named in list(bare.find_all(exp.Subquery)):
        named.set("alias", None)
    return sql_text(bare)
