"""One schema in several orders. A model's mistakes depend on the order in which tables and columns are shown to it."""

import random
from dataclasses import replace

from tools.schema import Schema, Table


def in_order(schema: Schema, number: int) -> Schema:
    """The schema in its own order (0), with the tables reversed (1), or with tables and columns shuffled, always alike for a
    number. Keys keep their places.

    >>> from tools.schema import Column
    >>> schema = Schema((Table("a", (Column("x", "int"),)), Table("b", (Column("y", "int"),))), "sqlite")
    >>> [table.name for table in in_order(schema, 1).tables]
    ['b', 'a']
    """
    if number < 2:
        return schema if number == 0 else replace(schema, tables=schema.tables[::-1])
    draw = random.Random(number)
    tables = list(schema.tables)
    draw.shuffle(tables)
    return replace(schema, tables=tuple(_shuffled(table, draw) for table in tables))


def _shuffled(table: Table, draw: random.Random) -> Table:
    referring = {name for key in table.foreign_keys for name in key.columns}
    moving = [column for column in table.columns if not column.primary_key and column.name not in referring]
    order = iter(draw.sample(moving, len(moving)))
    kept = {id(column) for column in table.columns} - {id(column) for column in moving}
    return replace(table, columns=tuple(each if id(each) in kept else next(order) for each in table.columns))
