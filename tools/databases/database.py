"""What an open database can do, and which kinds of databases there are. `tools.databases.open_database` opens any source.

The statement of `Distinct` is made here, of names that the schema has and of numbers, so the guard has nothing to judge in it:
judging takes ten times as long as reading a small table. The engine's own locks hold all the same. The engines live in their
own files, none of which is imported here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from tools.databases.files.file_kinds import has_many_tables, is_url, names_a_file
from tools.result import DEFAULT_LIMITS, Limits, QueryError, Result
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
            relation = ".".join(quoted(part, schema.dialect) for part in found.path or (found.name,))
            before, between, after = template
            name = quoted(known.name, schema.dialect)
            yield f"SELECT {number} AS number, found FROM ({before}{name}{between}{relation}{after}) AS part"


@lru_cache(maxsize=65_536)
def quoted(name: str, dialect: str) -> str:
    """`name` as an identifier of the dialect that no keyword and no character can break."""
    from sqlglot import exp

    return exp.to_identifier(name, quoted=True).sql(dialect)


@lru_cache(maxsize=64)
def _template(dialect: str, most: int, longest: int) -> tuple[str, str, str]:
    """What stands before the column's name, between it and the table's, and after that."""
    from sqlglot import exp

    found = exp.column("found")
    short = exp.LTE(this=exp.Length(this=found.copy()), expression=exp.Literal.number(longest))
    rows = exp.select(exp.column(_COLUMN, quoted=True).as_("found")).from_(exp.table_(_TABLE, quoted=True))
    values = exp.select(found.copy()).distinct().from_(rows.subquery("rows_read"))
    values = values.where(short if longest else found.copy().is_(exp.null()).not_()).limit(most)
    before, _, rest = values.sql(dialect).partition(quoted(_COLUMN, dialect))
    between, _, after = rest.partition(quoted(_TABLE, dialect))
    return before, between, after


class Database(Protocol):
    """An open source of tables. Every method may be called from any thread; nothing is ever written."""

    @property
    def name(self) -> str:
        """What a person calls this database: the file's stem or the URL's database name."""
        ...

    @property
    def dialect(self) -> str:
        """sqlglot's name for the SQL that `execute` takes."""
        ...

    def schema(self) -> Schema:
        """Tables, keys, comments and samples; read once, then remembered."""
        ...

    def hold_to(self, seen: Schema) -> None:
        """From now on nothing outside `seen`, a part of the schema, may be read: the engine's own lock, where it has one.

        It comes after the guard's rewriting and does not replace it: `*` still means every column. Called once, before the
        first query. Raises OpenError.
        """
        ...

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Run one guarded, read-only statement. Bad SQL comes back as data, never as an exception."""
        ...

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Guard and bind the statement without running it; None means that it would run."""
        ...

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """How the engine would run the statement, in its own words; an error where it, or this program, doesn't tell."""
        ...

    def distinct(self, wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Look up values of columns of the schema."""
        ...

    def prepare(self) -> None:
        """Get ready for the first query while the caller does something else; there may be nothing to do."""
        ...

    def interrupt(self) -> None:
        """Stop every running `execute` of this database: it returns kind "interrupted"."""
        ...

    def close(self) -> None:
        """Release the connection and any temporary copy. Closing twice does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class DatabaseKind:
    """A kind of database. Sources are what `--db` names: one URL, or paths.

    recognises: whether sources are of this kind, where nobody named one. open: the place, "module:function", of what opens
    them, imported when it is needed; it returns a `tools.databases.guarded_database.GuardedDatabase` or raises OpenError.
    open_apart: the same where files are to be read in a process of their own; None: `open`.
    """

    recognises: Callable[[Sequence[str]], bool]
    open: str
    open_apart: str | None = None


DATABASE_KINDS: dict[str, DatabaseKind] = {
    "duckdb": DatabaseKind(
        lambda sources: True,
        "tools.databases.open_database:open_files",
        "tools.databases.open_database:open_files_apart",
    ),
    "server": DatabaseKind(
        lambda sources: is_url(sources[0]) and not names_a_file(sources[0]),
        "tools.databases.sqlalchemy_database:open_server",
    ),
    "sqlite": DatabaseKind(
        lambda given: (names_a_file(given[0]) and given[0].startswith("sqlite")) or has_many_tables(given),
        "tools.databases.sqlite_database:open_sqlite",
    ),
}
"""By the name that `--engine` takes. The last one that recognises a source opens it."""


def register_database_kind(name: str, kind: DatabaseKind) -> None:
    """Make a kind of database known; it is asked before all others. Raises ValueError for a name that is taken."""
    if not name.isidentifier() or name == "auto" or name in DATABASE_KINDS:
        raise ValueError(f"a kind of database cannot be called {name!r}: choose a new name of letters, digits and _")
    DATABASE_KINDS[name] = kind
