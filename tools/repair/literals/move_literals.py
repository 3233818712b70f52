"""Deterministic repair of a query without rows: moves a literal from a column that does not hold it to the one that does.

It uses no model and does not guess: the value index says which column holds a value, and a literal is moved only if there is
just one possibility.
"""

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.linking.match_values import ValueMatch
from tools.repair.add_join import add_join
from tools.schema import ColumnRef, Schema
from tools.sql.joinable_columns import joinable
from tools.sql.parse_quietly import parse_quietly
from tools.sql.scope import column_ref, sources

SURE = 0.9


def move_literals(sql: str, schema: Schema, values: Sequence[ValueMatch]) -> str | None:
    """The statement with misplaced literals moved to the columns of `values`, joined if necessary, and spelled as in the cell;
    None if nothing is misplaced. `sql` is in the schema's dialect.

    The value index found the text in another column, and in capitals:

    >>> from tools.schema import Column, Schema, Table
    >>> hero = Table("hero", (Column("name", "TEXT"), Column("publisher", "TEXT")))
    >>> found = ValueMatch("hero", "publisher", "DC Comics", "dc comics", 1.0)
    >>> move_literals("SELECT COUNT(*) FROM hero WHERE name = 'dc comics'", Schema((hero,), "sqlite"), [found])
    "SELECT COUNT(*) FROM hero WHERE publisher = 'DC Comics'"
    """
    try:
        statements = parse_quietly(sql, schema.dialect)
    except (SqlglotError, RecursionError):
        return None
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, exp.Query):
        return None
    moved = [_moved(condition, schema, values) for condition in list(tree.find_all(exp.EQ))]
    return tree.sql(schema.dialect) if any(moved) else None


def _moved(condition: exp.EQ, schema: Schema, values: Sequence[ValueMatch]) -> bool:
    """Whether the condition was changed."""
    column, literal = condition.this, condition.expression
    if not isinstance(column, exp.Column) or not isinstance(literal, exp.Literal) or not literal.is_string:
        return False
    cells = [v for v in values if v.score >= SURE and v.value.casefold() == literal.name.casefold()]
    here = column_ref(column, schema)
    if not cells or here is None:
        return False
    if any(_hold_the_same(here, (cell.table, cell.column), schema) for cell in cells):
        return False
    own = [cell for cell in cells if (cell.table, cell.column) == here]
    there = (own[0].table, own[0].column) if own else _destination(condition, here[0], cells, schema)
    if there is None or (own and literal.name in [cell.value for cell in own]):
        return False
    value = next(cell.value for cell in own or cells if (cell.table, cell.column) == there)
    condition.set("expression", exp.Literal.string(value))
    return True


def _destination(condition: exp.EQ, table: str, cells: Sequence[ValueMatch], schema: Schema) -> ColumnRef | None:
    """Replace the condition's column by the one that holds the value: in its own table, in another one of the query, or in one
    that can be joined. table: that of the condition's column.
    """
    select = condition.parent_select
    if not isinstance(select, exp.Select):
        return None
    columns = list(dict.fromkeys((cell.table, cell.column) for cell in cells))
    called = {source.table.name: source.alias for source in sources(select, schema) if source.table}
    present = [column for column in columns if column[0] in called]
    present = [column for column in present if column[0] == table] or present
    if len(present) == 1:
        there = present[0]
        alias: str | None = called[there[0]] if len(called) > 1 else ""
    else:
        alias = None if present else add_join(select, [table for table, _ in columns], schema)
        joined = [column for column in columns if column[0] == alias]
        there = joined[0] if len(joined) == 1 else ("", "")
    if alias is None or not there[0]:
        return None
    condition.set("this", exp.column(there[1], table=alias or None))
    return there


def _hold_the_same(one: ColumnRef, other: ColumnRef, schema: Schema) -> bool:
    """Whether a join may equate the two columns, so that both may hold the same values."""
    pairs = joinable(schema).between(one[0].lower(), other[0].lower())
    return one != other and (one[1].lower(), other[1].lower()) in pairs
