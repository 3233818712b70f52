"""Which tables and types a statement may name.

A table that the schema does not list is left to the engine, which knows candidates; a system catalogue, a file, a table
function that does more than make rows, or what lies outside the database is refused here.
"""

import re
from difflib import get_close_matches

from sqlglot import exp

from tools.guard.allowed_functions import TABLE_FUNCTIONS
from tools.result import QueryError
from tools.schema import Schema, Table, words_of

_SYSTEM_SCHEMAS = {
    "information_schema", "mysql", "performance_schema", "pg_catalog", "pg_toast", "sys", "system", "temp"
}  # fmt: skip
_SYSTEM_TABLES = re.compile(r"^(?:sqlite_|pg_|duckdb_|pragma_|information_schema|(?:dbstat|fts3tokenize|bytecode)$)")
_OWN_SCHEMAS = {"duckdb": {"main"}, "sqlite": {"main"}, "postgres": {"public"}, "tsql": {"dbo"}}
_LOOKS_LIKE_A_FILE = re.compile(r"[./\\:*?\[\]~]|^$")


def refused(message: str, name: str | None = None) -> QueryError:
    """The error of a statement that may not run; `name` is the table, function or type at fault."""
    return QueryError("refused", f"refused: {message}", name)


def function_name(function: exp.Func) -> str:
    """The name as written where sqlglot has no class for it, else sqlglot's own; lower case."""
    if isinstance(function, exp.Anonymous | exp.AnonymousAggFunc):
        return function.name.lower()
    return function.sql_name().lower()


def written_name(function: exp.Func, text: str) -> str:
    """The name as the engine reads it, which sqlglot may call otherwise: `sqlite_version` has its class CurrentVersion."""
    start, end = function.meta.get("start"), function.meta.get("end")
    return "" if start is None or end is None else text[start : end + 1].strip('"`[]').lower()


def type_objection(type_: exp.DataType, schema: Schema | None) -> QueryError | None:
    """PostgreSQL has a type for the rows of each table, with its column names, and types that look names up.

    A type that was made in the database is known where a column has it, as an enumeration; one of rows never is.
    """
    if isinstance(type_, exp.ObjectIdentifier) and str(type_.this).startswith("REG"):
        return refused(f"the type {str(type_.this).lower()} looks into the system catalogue")
    kind = type_.args.get("kind") if type_.this == exp.DType.USERDEFINED else None
    names = [each.name for each in kind.find_all(exp.Identifier)] if isinstance(kind, exp.Expr) else [str(kind or "")]
    own, qualifiers = names[-1].lower().lstrip("_"), {name.lower() for name in names[:-1]}
    rows_of = {table.name.rpartition(".")[2].lower().lstrip("_") for table in schema.tables} if schema else set()
    if own in rows_of or own.startswith("pg_") or qualifiers & _SYSTEM_SCHEMAS:
        return refused(f"the rows of {names[-1]} are no type for a query", names[-1])
    if schema and own in schema.own_types - {word for table in schema.tables for word in _types_of(table)}:
        return refused(f"no column has the type {names[-1]}", names[-1])
    return None


def _types_of(table: Table) -> frozenset[str]:
    return frozenset(word for column in table.columns for word in words_of(column.type))


def table_objection(table: exp.Table, dialect: str, schema: Schema | None) -> QueryError | None:
    """Why this may not stand in FROM."""
    source = table.this
    if isinstance(source, exp.Func):
        name = function_name(source)
        allowed = isinstance(source, exp.GenerateSeries | exp.Unnest) or name in TABLE_FUNCTIONS
        return None if allowed else refused(f"{name} cannot be read like a table", name)
    if not isinstance(source, exp.Identifier):
        return refused("FROM may only name tables")
    qualifier, name = ".".join(part for part in (table.catalog, table.db) if part), source.name
    if schema is not None and in_schema(schema, qualifier, name, dialect):
        return None
    return _foreign(qualifier, name, dialect, schema)


def in_schema(schema: Schema, qualifier: str, name: str, dialect: str) -> Table | None:
    """The table that a statement means by this name; `qualifier`: the schema that stands before it, or ""."""
    if not qualifier or qualifier.lower() in _OWN_SCHEMAS.get(dialect, set()):
        return schema.table(name)
    return schema.table(f"{qualifier}.{name}")


def unknown_table(found: exp.Expr, schema: Schema | None) -> QueryError:
    """The error of a name that is no table."""
    by_key = {table.name.casefold(): table.name for table in schema.tables} if schema else {}
    close = get_close_matches(found.name.casefold(), by_key, n=3)
    candidates = tuple(by_key[key] for key in close)
    return QueryError("unknown_table", f"no such table: {found.name}", found.name, None, candidates)


def _foreign(qualifier: str, name: str, dialect: str, schema: Schema | None) -> QueryError | None:
    """Why a table that the schema does not list may not even be tried; None leaves it to the engine."""
    if _SYSTEM_TABLES.match(name.lower()) or _SYSTEM_SCHEMAS & set(qualifier.lower().split(".")):
        return refused(f"{name} is a system catalogue", name)
    if _LOOKS_LIKE_A_FILE.search(name):
        return refused(f"{name} is no table of this database", name)
    if qualifier and schema is not None and not _harmless(qualifier, dialect, schema):
        return refused(f"{qualifier}.{name} lies outside this database", f"{qualifier}.{name}")
    return None


def _harmless(qualifier: str, dialect: str, schema: Schema) -> bool:
    """A schema that is known, or that cannot exist: DuckDB and SQLite hold one file here and will say, with candidates,
    that they do not know `concert_singer.singer`."""
    if dialect in ("duckdb", "sqlite") and "." not in qualifier:
        return True
    return qualifier.lower() in _known_schemas(schema, dialect)


def _known_schemas(schema: Schema, dialect: str) -> set[str]:
    prefixes = {table.name.rpartition(".")[0].lower() for table in schema.tables}
    return prefixes | _OWN_SCHEMAS.get(dialect, set())
