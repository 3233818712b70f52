"""Lists the columns that the head of a question lists, and no others."""

from collections.abc import Sequence

from sqlglot import exp

from tools.linking.match_values import ValueMatch
from tools.linking.said.listed_columns import Places, listed_columns
from tools.schema import Schema
from tools.sql.only_column import only_column
from tools.sql.parse_quietly import parse_or_nothing
from tools.sql.scope import FromItem, column_ref, sources


def list_columns(sql: str, schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> str | None:
    """The statement with the columns that the question lists in place of its own; None if it has just these, if FROM does not
    have each of them once, or if it shows anything but columns.

    >>> from tools.schema import Column, Table
    >>> wine = Table("wine", tuple(Column(name, "TEXT") for name in ("grape", "winery", "price", "year")))
    >>> question = "List the grape, winery and year of the wines whose price is bigger than 100."
    >>> list_columns("SELECT grape, winery, price FROM wine WHERE price > 100", Schema((wine,), "sqlite"), question)
    'SELECT grape, winery, year FROM wine WHERE price > 100'
    """
    listed = listed_columns(schema, question, values)
    trees = parse_or_nothing(sql, schema.dialect) if listed else []
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or not _shows_columns(select):
        return None
    every = sources(select, schema)
    wanted = [_column(places, every) for places in listed]
    shown = {_place(item, schema) for item in select.selects}
    if None in wanted or None in shown or (all(places & shown for places in listed) and len(shown) == len(listed)):
        return None
    select.set("expressions", wanted)
    return select.sql(schema.dialect)


def _shows_columns(select: exp.Select) -> bool:
    order = select.args.get("order")
    by_place = order is not None and order.find(exp.Literal) is not None
    plain = all(isinstance(item, exp.Column) and not item.is_star for item in select.selects)
    return plain and not by_place and not select.args.get("group")


def _place(item: exp.Expr, schema: Schema) -> tuple[str, str] | None:
    ref = column_ref(item, schema) if isinstance(item, exp.Column) else None
    return (ref[0].lower(), ref[1].lower()) if ref else None


def _column(places: Places, every: Sequence[FromItem]) -> exp.Column | None:
    """The only column in FROM at one of the places."""
    found = only_column(every, lambda table, column: (table.name.lower(), column.name.lower()) in places)
    return found and found[1]
