"""A database whose tables go by bare names, in whichever schema they lie: `users` for `sales.users` where no other table is
called so, and a name of one word, `sales__users`, where one is. Statements may use either; what runs is spelled out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from tools.databases.database import Database, Distinct
from tools.guard.guard import MAX_CHARACTERS
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import Schema, Table
from tools.sql.qualified import Qualified, qualified

if TYPE_CHECKING:
    from tools.databases.choices import SchemaCache
    from tools.databases.guarded_database import GuardedDatabase


class BareNamedDatabase:
    """`whole` with bare names; see `tools.databases.database.Database`."""

    def __init__(self, whole: Database) -> None:
        self.name, self.dialect = whole.name, whole.dialect
        self.whole = whole
        self._known: tuple[Schema, Schema] | None = None

    def schema(self) -> Schema:
        """The schema with bare names."""
        whole = self.whole.schema()
        known = self._known
        if known is None or known[0] is not whole:
            self._known = known = (whole, with_bare_names(whole))
        return known[1]

    def hold_to(self, seen: Schema) -> None:
        """See `Database.hold_to`."""
        self.whole.hold_to(_renamed(seen, {each.name: _full(each) for each in self.schema().tables}))

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """See `Database.execute`."""
        statement = self._qualified(sql)
        if isinstance(statement, QueryError):
            return statement
        outcome = self.whole.execute(statement.text, limits)
        if isinstance(outcome, QueryError):
            return replace(outcome, position=statement.origin(outcome.position))
        return outcome

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """See `Database.explain`."""
        statement = self._qualified(sql)
        if isinstance(statement, QueryError):
            return statement
        problem = self.whole.explain(statement.text, limits)
        return problem and replace(problem, position=statement.origin(problem.position))

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """See `Database.plan`."""
        statement = self._qualified(sql)
        return statement if isinstance(statement, QueryError) else self.whole.plan(statement.text, limits)

    def distinct(self, wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """See `Database.distinct`."""
        try:
            full = {each.name: _full(each) for each in self.schema().tables}
        except OpenError as error:
            return QueryError("connection", str(error))
        columns = tuple((full.get(table, table), column) for table, column in wanted.columns)
        return self.whole.distinct(replace(wanted, columns=columns), limits)

    def keep_schema(self, cache: "SchemaCache") -> None:
        """See `GuardedDatabase.keep_schema`; what is kept has full names."""
        cast("GuardedDatabase", self.whole).keep_schema(cache)

    def prepare(self) -> None:
        """Get ready for the first query."""
        self.whole.prepare()

    def interrupt(self) -> None:
        """See `Database.interrupt`."""
        self.whole.interrupt()

    def close(self) -> None:
        """Close the database."""
        self.whole.close()

    def _qualified(self, sql: str) -> Qualified | QueryError:
        if len(sql) > MAX_CHARACTERS:  # reading it would take seconds; the guard refuses it unread
            return Qualified(sql)
        try:
            return qualified(sql, self.schema())
        except OpenError as error:
            return QueryError("connection", str(error))


def with_bare_names(schema: Schema) -> Schema:
    """The schema in which every table has a name without a dot; the same where all have.

    >>> sold = [Table(f"sales.{name}", (), path=("sales", name)) for name in ("users", "days")]
    >>> [table.name for table in with_bare_names(Schema((Table("users", ()), *sold), "duckdb")).tables]
    ['users', 'sales__users', 'days']
    """
    if not any(table.path for table in schema.tables):
        return schema
    own = [(table.path[-1] if table.path else table.name).casefold() for table in schema.tables]
    taken = {name.casefold() for name in own}
    names = {}
    for table, name in zip(schema.tables, own, strict=True):
        if not table.path:
            names[table.name] = table.name
        elif own.count(name) == 1:
            names[table.name] = table.path[-1]
        else:
            names[table.name] = _unused("__".join(table.path), taken)
            taken.add(names[table.name].casefold())
    return _renamed(schema, names)


def _unused(name: str, taken: set[str]) -> str:
    while name.casefold() in taken:
        name += "_"
    return name


def _full(table: Table) -> str:
    return ".".join(table.path) or table.name


def _renamed(schema: Schema, names: Mapping[str, str]) -> Schema:
    return replace(schema, tables=tuple(_renamed_table(table, names) for table in schema.tables))


def _renamed_table(table: Table, names: Mapping[str, str]) -> Table:
    keys = tuple(replace(key, ref_table=names.get(key.ref_table, key.ref_table)) for key in table.foreign_keys)
    parents = tuple(names.get(parent, parent) for parent in table.parents)
    return replace(table, name=names.get(table.name, table.name), foreign_keys=keys, parents=parents)
