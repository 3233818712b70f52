"""Copies the tables and views of a SQLite file into DuckDB, with types that its values really have. Needs no extension.

SQLite types values, not columns, so a column's DuckDB type follows the storage classes found in it: integers BIGINT, integers
and reals DOUBLE, texts VARCHAR, blobs BLOB, anything mixed VARCHAR. The declared type decides for a column without values,
and makes DATE or TIMESTAMP of declared dates when every text parses. Keys and comments are handed back as notes: a copy
declares none, for SQLite does not enforce foreign keys and its data may break them.
"""

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import duckdb

from tools.databases.duckdb.duckdb_schema import quoted
from tools.databases.files.file_kinds import stem
from tools.databases.files.insert_columns import create_table, insert_columns
from tools.databases.files.table_names import TableNames, distinct
from tools.databases.sqlite.read_only_file import ReadOnlyFile
from tools.processes.watchdog import Watchdog
from tools.result import OpenError
from tools.schema import Column, ForeignKey, Table, words_of

BATCH, BATCH_WITH_BLOBS = 8192, 64
VIEW_DEADLINE_S = 10.0
_BY_STORAGE = {
    frozenset({"integer"}): "BIGINT",
    frozenset({"real"}): "DOUBLE",
    frozenset({"integer", "real"}): "DOUBLE",
    frozenset({"blob"}): "BLOB",
}
_BY_DECLARED = (
    ("TIMESTAMP", "TIMESTAMP"), ("DATETIME", "TIMESTAMP"), ("DATE", "DATE"), ("INT", "BIGINT"), ("CHAR", "VARCHAR"),
    ("CLOB", "VARCHAR"), ("TEXT", "VARCHAR"), ("REAL", "DOUBLE"), ("FLOA", "DOUBLE"), ("DOUB", "DOUBLE"),
    ("DEC", "DOUBLE"), ("NUM", "DOUBLE"), ("BOOL", "BIGINT"), ("BLOB", "BLOB"),
)  # fmt: skip


def load_sqlite(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """Copy every table; views become tables, and one that fails or takes over 10 s is left out. Returns the notes.

    Raises OpenError when the file cannot be read.
    """
    file = ReadOnlyFile(path)
    try:
        tables = file.schema().tables
        called = {table.name: names.keep(table.name, f"{stem(path)}_{table.name}") for table in tables}
        connection.execute("BEGIN")
        with file.snapshot() as source:
            for table in tables:
                if not _copy(source, connection, file, table, called[table.name]):
                    del called[table.name]
        connection.execute("COMMIT")
    except (sqlite3.Error, duckdb.Error) as error:
        raise OpenError(f"cannot copy {path} into DuckDB: {str(error).splitlines()[0]}") from error
    finally:
        file.close()
    return {called[table.name]: _renamed(table, called) for table in tables if table.name in called}


def _renamed(table: Table, called: dict[str, str]) -> Table:
    keys = (replace(key, ref_table=called[key.ref_table]) for key in table.foreign_keys if key.ref_table in called)
    made_of = table.made_of.union(*(words_of(called[name]) for name in called if words_of(name) <= table.made_of))
    return replace(table, name=called[table.name], foreign_keys=tuple[ForeignKey, ...](keys), made_of=made_of)


def _copy(
    source: sqlite3.Connection, connection: duckdb.DuckDBPyConnection, file: ReadOnlyFile, table: Table, name: str
) -> bool:
    """Whether the table could be copied; one that holds its own rows and could not raises sqlite3.Error."""
    is_stored = table.name not in file.views and table.name not in file.virtual_tables
    deadline_s = threading.TIMEOUT_MAX if is_stored else VIEW_DEADLINE_S
    with Watchdog(deadline_s, source.interrupt):
        try:
            _copy_rows(source, connection, table, name)
        except (sqlite3.OperationalError, sqlite3.DataError):
            if is_stored:
                raise
            connection.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
            return False
    return True


def _copy_rows(source: sqlite3.Connection, connection: duckdb.DuckDBPyConnection, table: Table, name: str) -> None:
    storages = _storages(source, table)
    types = [_type(column, storage) for column, storage in zip(table.columns, storages, strict=True)]
    names = distinct([column.name for column in table.columns])
    create_table(connection, name, names, types)
    items = ", ".join(
        f"CAST({quoted(column.name)} AS TEXT)" if type_ == "VARCHAR" else quoted(column.name)
        for column, type_ in zip(table.columns, types, strict=True)
    )
    cursor = source.execute(f"SELECT {items} FROM {quoted(table.name)}")
    while rows := cursor.fetchmany(BATCH_WITH_BLOBS if "BLOB" in types else BATCH):
        insert_columns(connection, name, types, list(zip(*rows, strict=True)))
    for column, storage, copied in zip(table.columns, storages, names, strict=True):
        if storage == {"text"} and _declared(column) in ("DATE", "TIMESTAMP"):
            _read_as_dates(connection, name, copied)


def _storages(source: sqlite3.Connection, table: Table) -> list[frozenset[str]]:
    """The storage classes of each column's values, found in one pass over the table."""
    found = ", ".join(f"group_concat(DISTINCT typeof({quoted(column.name)}))" for column in table.columns)
    row = source.execute(f"SELECT {found} FROM {quoted(table.name)}").fetchone()
    return [frozenset((classes or "").split(",")) - {"null", ""} for classes in row]


def _type(column: Column, storage: frozenset[str]) -> str:
    """Dates come in as text, and are read as dates once all of them are there."""
    if storage:
        return _BY_STORAGE.get(storage, "VARCHAR")
    return _declared(column)


def _declared(column: Column) -> str:
    return next((type_ for word, type_ in _BY_DECLARED if word in column.type.upper()), "VARCHAR")


def _read_as_dates(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> None:
    """Make the text column DATE if every text is a date as DATE prints it, else TIMESTAMP if every text is a time."""
    name = quoted(column)
    not_dates = f"CAST(TRY_CAST({name} AS DATE) AS VARCHAR) IS DISTINCT FROM {name}"
    not_times = f"TRY_CAST({name} AS TIMESTAMP) IS NULL AND {name} IS NOT NULL"
    counts = f"SELECT count(*) FILTER ({not_dates}), count(*) FILTER ({not_times}) FROM {quoted(table)}"
    others = connection.execute(counts).fetchone() or (1, 1)
    kind = next((kind for kind, count in zip(("DATE", "TIMESTAMP"), others, strict=True) if not count), None)
    if kind:
        connection.execute(f"ALTER TABLE {quoted(table)} ALTER {name} TYPE {kind}")
