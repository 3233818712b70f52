"""Asks for what is empty: "artists without a website" have `website IS NULL`, and are not those of another table's rows."""

from sqlglot import exp

from tools.linking.said.absent_columns import absent_columns
from tools.schema import Schema
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import sources


def ask_absence(sql: str, schema: Schema, question: str) -> str | None:
    """The statement with IS NULL for the one column that the question says is empty; None unless its table is in FROM, and the
    statement has no condition but one that this can stand for: a NOT IN, or a comparison of the column with a text.

    >>> from tools.schema import Column, Table
    >>> artist = Table("artists", (Column("id", "INTEGER"), Column("name", "TEXT"), Column("website", "TEXT")))
    >>> sql = "SELECT name FROM artists WHERE NOT id IN (SELECT id FROM artists)"
    >>> ask_absence(sql, Schema((artist,), "duckdb"), "Which artists have no website?")
    'SELECT name FROM artists WHERE website IS NULL'
    """
    places = sorted(absent_columns(schema, question))
    trees = parse_or_nothing(sql, schema.dialect) if len(places) == 1 else []
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or select.args.get("having"):
        return None
    table, column = places[0]
    own = [source for source in sources(select, schema) if source.table and source.table.name.lower() == table]
    where = select.args.get("where")
    if len(own) != 1 or (where is not None and not _stands_for(where.this, column)):
        return None
    spelled = (
        next(each.name for each in own[0].table.columns if each.name.lower() == column) if own[0].table else column
    )
    qualifier = own[0].alias if select.args.get("joins") else None
    select.set("where", exp.Where(this=exp.column(spelled, table=qualifier).is_(exp.null())))
    return select.sql(schema.dialect)


def _stands_for(condition: exp.Expr, column: str) -> bool:
    """Whether a condition is a negated IN or EXISTS, or compares the column with a text."""
    if isinstance(condition, exp.Not):
        return isinstance(condition.this, exp.In | exp.Exists)
    name, value = condition.this, condition.args.get("expression")
    own = isinstance(name, exp.Column) and name.name.lower() == column
    return isinstance(condition, exp.EQ) and own and isinstance(value, exp.Literal)
