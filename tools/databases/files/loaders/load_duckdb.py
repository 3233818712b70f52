"""Copies the tables of a DuckDB file."""

import threading
from pathlib import Path

import duckdb

from tools.databases.duckdb.duckdb_database import DuckDBDatabase
from tools.databases.duckdb.duckdb_schema import quoted
from tools.databases.files.file_kinds import stem
from tools.databases.files.loaders.by_duckdb import literal
from tools.databases.files.loaders.load_sqlite import VIEW_DEADLINE_S
from tools.databases.files.table_names import TableNames
from tools.processes.watchdog import Watchdog
from tools.result import OpenError
from tools.schema import Table


def load_duckdb(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """Every table of a DuckDB file; views become tables, and one that fails or takes over 10 s is left out.

    Raises OpenError.
    """
    original = DuckDBDatabase(path, stem(path))
    tables = original.schema().tables
    original.close()
    called = {table.name: names.keep(table.name.rpartition(".")[2], f"{stem(path)}_{table.name}") for table in tables}
    try:
        connection.execute(f"ATTACH {literal(str(path))} AS source (READ_ONLY)")
        for table in tables:
            schema, _, bare = table.name.rpartition(".")
            origin = f"source.{quoted(schema or 'main')}.{quoted(bare)}"
            if not _copied_table(connection, origin, called[table.name], is_view=table.row_count is None):
                del called[table.name]
        connection.execute("DETACH source")
    except duckdb.Error as error:
        raise OpenError(f"cannot copy {path}: {str(error).splitlines()[0]}") from error
    return {called[table.name]: table for table in tables if table.name in called}


def _copied_table(connection: duckdb.DuckDBPyConnection, origin: str, name: str, is_view: bool) -> bool:
    """Whether it could be copied; a table that could not raises duckdb.Error."""
    with Watchdog(VIEW_DEADLINE_S if is_view else threading.TIMEOUT_MAX, connection.interrupt):
        try:
            connection.execute(f"CREATE TABLE {quoted(name)} AS FROM {origin}")
        except duckdb.Error:
            if not is_view:
                raise
            return False
    return True
