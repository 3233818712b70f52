"""The one way to open any source of tables: by its address, a folder, or files.

`BareNamedDatabase` lets tables go by bare names. `RestrictedDatabase` applies `tools/guard/visibility.py`: for those who ask,
only some tables and columns exist. What an open database can do, and the kinds of databases, are in `tools.databases.database`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal, cast, overload

from tools.databases.choices import ROWS_LOOKED_AT, VIEWS_S, samples
from tools.databases.database import DATABASE_KINDS, Database, DatabaseKind, Distinct, quoted
from tools.databases.duckdb_database import DuckDBDatabase
from tools.databases.files.file_kinds import FileKind, files_of, is_url, name_of, names_a_file, path_of
from tools.databases.files.load_files import Copied, Copier, copy_files, load_files
from tools.databases.files.sheets import DETECTED, Choices, Sheet
from tools.databases.guarded_database import GuardedDatabase
from tools.databases.isolated_database import IsolatedDatabase
from tools.guard.canonicalize import Respelt
from tools.guard.guard import MAX_CHARACTERS, judged
from tools.guard.visibility import Visibility, narrowed, rules_of
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import Schema, Table
from tools.sql.spelling import Qualified, qualified

if TYPE_CHECKING:
    from tools.databases.choices import SchemaCache


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

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """See `Database.plan`."""
        statement = self._qualified(sql)
        return statement if isinstance(statement, QueryError) else self.whole.plan(statement.text, limits)

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """See `Database.explain`."""
        statement = self._qualified(sql)
        if isinstance(statement, QueryError):
            return statement
        problem = self.whole.explain(statement.text, limits)
        return problem and replace(problem, position=statement.origin(problem.position))

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


class RestrictedDatabase:
    """`database`, seen through `visibility`; see `tools.databases.database.Database`. Raises OpenError for names that it
    lacks, and for a rule that does not run.
    """

    def __init__(self, database: Database, visibility: Visibility) -> None:
        self.name, self.dialect = database.name, database.dialect
        self._database = database
        self._seen = visibility.seen(database.schema())
        database.hold_to(self._seen)
        self._hidden = _column_and_table_names(database.schema()) - _column_and_table_names(self._seen)
        if visibility.rules:
            self._seen = replace(self._seen, tables=tuple(map(self._sampled, self._seen.tables)))

    def _sampled(self, table: Table) -> Table:
        """The table; where it has a rule, with samples of the rows that may be seen. Raises OpenError."""
        if not table.rule:
            return table
        columns = ", ".join(quoted(each.name, self.dialect) for each in table.columns)
        place = ".".join(quoted(part, self.dialect) for part in table.path or (table.name,))
        rows = self.execute(f"SELECT {columns} FROM {place}", Limits(deadline_s=VIEWS_S, max_rows=ROWS_LOOKED_AT))
        if isinstance(rows, QueryError):
            raise OpenError(f"the rule for {table.name} does not run: {rows.message}")
        found = samples(rows.rows, len(table.columns))
        shown = (replace(each, samples=values) for each, values in zip(table.columns, found, strict=True))
        return replace(table, columns=tuple(shown))

    def schema(self) -> Schema:
        """What may be seen of the schema."""
        return self._seen

    def hold_to(self, seen: Schema) -> None:
        """See less still."""
        self._database.hold_to(seen)
        self._seen = seen

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Run one guarded query; see `Database.execute`."""
        statement = self._narrowed(sql)
        if isinstance(statement, QueryError):
            return self._told(statement, sql)
        outcome = self._database.execute(statement.text, limits)
        return self._told(_placed(outcome, statement), sql) if isinstance(outcome, QueryError) else outcome

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Guard and bind without running; see `Database.explain`."""
        statement = self._narrowed(sql)
        if isinstance(statement, QueryError):
            return self._told(statement, sql)
        problem = self._database.explain(statement.text, limits)
        return self._told(_placed(problem, statement), sql) if problem else None

    def plan(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """There is no plan: it may name what is hidden, such as the tables of a view."""
        return QueryError("refused", "a plan may name tables that are hidden")

    def distinct(self, wanted: Distinct, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Look up values of columns that may be seen; see `Database.distinct`."""
        try:
            wanted.sql(self._seen)
        except LookupError as error:
            return QueryError("refused", str(error))
        tables = [self._seen.table(table) for table, _ in wanted.columns]
        if any(table and table.rule for table in tables):
            return self.execute(wanted.sql(self._seen), limits)
        return self._database.distinct(wanted, limits)

    def prepare(self) -> None:
        """Get ready for the first query."""
        self._database.prepare()

    def interrupt(self) -> None:
        """Stop every query that runs now."""
        self._database.interrupt()

    def close(self) -> None:
        """Close the underlying database."""
        self._database.close()

    def _narrowed(self, sql: str) -> Respelt | QueryError:
        try:
            whole = self._database.schema()
        except OpenError as error:
            return QueryError("connection", str(error))
        statement = judged(sql, self.dialect, self._seen)
        return statement if isinstance(statement, QueryError) else narrowed(statement, whole, self._seen)

    def _told(self, error: QueryError, sql: str) -> QueryError:
        """The error without names that the asker may not know."""
        said = {word.casefold() for word in re.findall(r"\w+", sql)}
        secret = self._hidden - said
        candidates = tuple(each for each in error.candidates if not _words(each) & self._hidden)
        message = error.message if not _words(error.message) & secret else f"the query does not run ({error.kind})"
        return replace(error, message=message, candidates=candidates)


def _placed(error: QueryError, statement: Respelt) -> QueryError:
    """The error with its place in the statement that was given, not in the narrowed one."""
    return replace(error, position=statement.origin(error.position))


def restricted(
    database: Database,
    tables: tuple[str, ...],
    hidden: tuple[str, ...],
    rules: Sequence[str] = (),
    values: Mapping[str, str] | None = None,
) -> Database:
    """The database itself where nothing is to be hidden. rules: `table: condition` texts, in which `values` stand for `:names`.
    Raises OpenError, and then the database is closed."""
    if not tables and not hidden and not rules and not values:
        return database
    try:
        visibility = Visibility(tables, hidden, rules_of(rules, values or {}, database.dialect))
        if isinstance(database, BareNamedDatabase):
            return BareNamedDatabase(RestrictedDatabase(database.whole, visibility))
        return RestrictedDatabase(database, visibility)
    except OpenError:
        database.close()
        raise


def _column_and_table_names(schema: Schema) -> set[str]:
    tables = {table.name.casefold() for table in schema.tables}
    return tables | {column.name.casefold() for table in schema.tables for column in table.columns}


def _words(text: str) -> set[str]:
    return {text.casefold(), *(word.casefold() for word in re.findall(r"\w+", text))}


@overload
def open_database(
    source: str | Path | Sequence[str | Path], *, engine: str = "auto", isolated: Literal[True]
) -> IsolatedDatabase | BareNamedDatabase: ...


@overload
def open_database(
    source: str | Path | Sequence[str | Path], *, engine: str = "auto", isolated: bool = False
) -> Database: ...


def open_database(
    source: str | Path | Sequence[str | Path], *, engine: str = "auto", isolated: bool = False
) -> Database:
    """Open a file, several files (each a table or more), a folder of files, or a database URL.

    `engine` is the name of a kind in `DATABASE_KINDS`. "auto" takes the kind that recognises the source: it opens as it is a
    DuckDB file and a SQLite file of more than 250 tables, copies every other file into a private DuckDB database, and reaches
    a URL in its own dialect. "duckdb" takes files
    only; "sqlite" takes one SQLite file and runs SQLite's dialect on it. `isolated`: files are copied and queries run in
    processes of their own, which can be killed.
    Raises OpenError, whose one line says what to do.
    """
    given = [str(source)] if isinstance(source, str | Path) else [str(each) for each in source]
    if not given:
        raise OpenError("no database given: name a file, a folder or a URL")
    if len(given) > 1 and any(map(is_url, given)):
        raise OpenError("a database URL stands alone: give one URL, or files")
    kind = _kind_of(given, engine)
    opened = _opened((kind.open_apart if isolated else None) or kind.open, given)
    database: Database = IsolatedDatabase(opened) if isolated else opened
    return BareNamedDatabase(database) if opened.has_schemas else database


def open_uploads(files: Sequence[Path], choices: Choices = DETECTED) -> tuple[Database, tuple[Sheet, ...]]:
    """Open files that a stranger brought, and say how those of CSV and Excel were read. All are copied, DuckDB's too, so
    that no process but bounded ones reads what is in them. Raises OpenError."""

    given = [str(file) for file in files]
    if _kind_of(given, "auto") not in (DATABASE_KINDS["duckdb"], DATABASE_KINDS["sqlite"]):
        return open_database(given, isolated=True), ()
    database, sheets = copy_apart_all(given, choices)
    return IsolatedDatabase(database), sheets


def _kind_of(given: Sequence[str], engine: str) -> DatabaseKind:
    if engine == "auto":
        return next(kind for kind in reversed(DATABASE_KINDS.values()) if kind.recognises(given))
    if engine not in DATABASE_KINDS:
        raise OpenError(f"unknown engine {engine}: choose one of auto, {', '.join(DATABASE_KINDS)}")
    return DATABASE_KINDS[engine]


def _opened(place: str, given: Sequence[str]) -> GuardedDatabase:
    try:
        opener = resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise OpenError(f"{place}, which opens {given[0]}, cannot be imported: {error}") from error
    opened = opener(given)
    if not isinstance(opened, GuardedDatabase):
        raise OpenError(f"{place} opened a {type(opened).__name__}, which is no GuardedDatabase: nothing guards it")
    return opened


def open_files_apart(sources: Sequence[str]) -> DuckDBDatabase:
    """As `open_files`, with the files copied by a process of their own, which is bounded and can be killed."""
    from tools.databases.isolated_database import copy_apart

    return open_files(sources, copy_apart)


def copy_apart_all(sources: Sequence[str], choices: Choices = DETECTED) -> tuple[DuckDBDatabase, tuple[Sheet, ...]]:
    """As `open_files_apart`, with DuckDB files copied too, so that nothing of a stranger's file is read in this process; and
    how the tables of CSV files and workbooks were read."""
    from tools.databases.isolated_database import copy_apart

    sheets: tuple[Sheet, ...] = ()

    def copy(files: Sequence[tuple[Path, FileKind]], to: Path, optional: Collection[Path] = ()) -> Copied:
        nonlocal sheets
        copied = copy_apart(files, to, optional, choices)
        sheets = copied.sheets
        return copied

    return open_files(sources, copy, as_it_is=False), sheets


def open_files(sources: Sequence[str], copy: Copier = copy_files, as_it_is: bool = True) -> DuckDBDatabase:
    """A DuckDB file as it is, all others copied into a private one; files of a folder that cannot be read are left out with a
    `LeftOut` warning. Raises OpenError."""
    if is_url(sources[0]) and not names_a_file(sources[0]):
        raise OpenError("the duckdb engine opens files; open a URL with engine auto")
    files, name = files_of(sources), name_of(sources)
    path, kind = files[0]
    if as_it_is and len(files) == 1 and kind == "duckdb":
        return DuckDBDatabase(path, name)
    named = {path_of(source).expanduser() for source in sources}
    return load_files(files, name, copy, [file for file, _ in files if file not in named])
