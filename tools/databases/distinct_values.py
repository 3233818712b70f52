"""Which distinct values of which columns a database is to look up for itself, and the statement for that.

The statement is made here, of names that the schema has and of numbers, so the guard has nothing to judge in it: judging takes
ten times as long as reading a small table. The engine's own locks hold all the same. Tables of which columns are hidden are
read through a subquery that names one visible column (see `tools.guard.visibility`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from tools.schema import ColumnRef, Schema

_TABLE, _COLUMN = "__table__", "__column__"


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct values of columns without NULL, `most` of each at most; without those of more than `longest` characters,
    unless that is 0. A row has the index of a column and a value."""

    columns: tuple[ColumnRef, ...]
    most: int
    longest: int = 0

    def sql(self, schema: Schema) -> str:
        """The statement. Raises LookupError for a column that the schema does not have."""
        return " UNION ALL ".join(self._parts(schema))

    def _parts(self, schema: Schema) -> Iterator[str]:
        template = _template(schema.dialect, self.most, self.longest)
        for number, (table, column) in enumerate(self.columns):
            found = schema.table(table)
            known = found.column(column) if found else None
            if found is None or known is None:
                raise LookupError(f"there is no column {table}.{column}")
            home, _, own = found.name.rpartition(".")
            relation = (
                f"{quoted(home, schema.dialect)}.{quoted(own, schema.dialect)}" if home else quoted(own, schema.dialect)
            )
            before, between, after = template
            name = quoted(known.name, schema.dialect)
            yield f"SELECT {number} AS number, found FROM ({before}{name}{between}{relation}{after}) AS part"


@lru_cache(maxsize=65_536)
def quoted(name: str, dialect: str) -> str:
    """`name` as an identifier of the dialect that no keyword and no character can break."""
    return exp.to_identifier(name, quoted=True).sql(dialect)


@lru_cache(maxsize=64)
def _template(dialect: str, most: int, longest: int) -> tuple[str, str, str]:
    """What stands before the column's name, between it and the table's, and after that."""
    found = exp.column("found")
    short = exp.LTE(this=exp.Length(this=found.copy()), expression=exp.Literal.number(longest))
    rows = exp.select(exp.column(_COLUMN, quoted=True).as_("found")).from_(exp.table_(_TABLE, quoted=True))
    values = exp.select(found.copy()).distinct().from_(rows.subquery("rows_read"))
    values = values.where(short if longest else found.copy().is_(exp.null()).not_()).limit(most)
    before, _, rest = values.sql(dialect).partition(quoted(_COLUMN, dialect))
    between, _, after = rest.partition(quoted(_TABLE, dialect))
    return before, between, after
