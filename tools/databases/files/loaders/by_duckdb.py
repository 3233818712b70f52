"""Files that DuckDB reads itself, each as one table."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from tools.databases.duckdb.duckdb_schema import quoted
from tools.databases.files.file_kinds import stem
from tools.databases.files.table_names import TableNames
from tools.result import OpenError
from tools.schema import Table

_JSON_ATTEMPTS = ("", ", sample_size = -1, maximum_object_size = 1073741824")


def load_json(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """One table from a JSON array of objects or from one object a line. Raises OpenError."""
    load_by("read_json", _JSON_ATTEMPTS, connection, path, names.take(stem(path)))
    return {}


def load_parquet(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames) -> dict[str, Table]:
    """One table from a Parquet file. Raises OpenError."""
    load_by("read_parquet", ("",), connection, path, names.take(stem(path)))
    return {}


def load_by(
    reader: str, attempts: Sequence[str], connection: duckdb.DuckDBPyConnection, path: Path, table: str
) -> None:
    """Make the table anew by the first attempt that reads the file. Raises OpenError."""
    source = literal(_without_wildcards(str(path)))
    errors = []
    for options in attempts:
        try:
            connection.execute(f"CREATE OR REPLACE TABLE {quoted(table)} AS FROM {reader}({source}{options})")
        except duckdb.OutOfMemoryException as error:
            raise OpenError(f"{path} takes too much memory to load; load a part of it") from error
        except duckdb.Error as error:
            errors.append(str(error).strip().splitlines()[0])
            continue
        if not _is_unsplit(connection, table):
            return
        errors.append("its rows do not have the same number of columns")
    raise OpenError(f"cannot read {path}: {errors[0]}")


def _is_unsplit(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    """True when the only column's name still holds separators: DuckDB found no way to split the rows evenly."""
    columns = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    return len(columns) == 1 and re.search(r"[,;\t|]", columns[0][0]) is not None


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _without_wildcards(path: str) -> str:
    """DuckDB takes a path for a pattern; in brackets each of its signs means itself."""
    return re.sub(r"([\[*?])", r"[\1]", path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors of the engine about this file as OpenError."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise OpenError(f"{path} takes too much memory to load; load a part of it") from error
    except duckdb.Error as error:
        raise OpenError(f"cannot read {path}: {str(error).strip().splitlines()[0]}") from error
