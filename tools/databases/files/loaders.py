"""Loads files of each kind into DuckDB tables: CSV, JSON, Parquet and SQLite; workbooks have their own module.

CSV files are read as texts, all rows of them, and types are found afterwards (`written_values`): DuckDB's own guess looks at
the first 20,480 rows and bends what comes later. Where the columns' names stand is found in the first rows.

SQLite types values, not columns, so the DuckDB type of a copied column follows the storage classes found in it: integers
BIGINT, integers and reals DOUBLE, texts VARCHAR, blobs BLOB, anything mixed VARCHAR. The declared type decides for a column
without values, and makes DATE or TIMESTAMP of declared dates when every text parses. Keys and comments are handed back as
notes: a copy declares none, for SQLite does not enforce foreign keys and its data may break them. Texts are read as in a CSV
file where numbers are declared, and in tables that declare nothing but text, as `sqlite3 .import` makes them.
"""

import json
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb

from tools.databases.duckdb_catalog import create_table, insert_columns, literal, quoted
from tools.databases.files.file_kinds import TableNames, as_utf8, distinct, stem
from tools.databases.files.sheets import (
    AS_DETECTED,
    DETECT,
    Choice,
    Choices,
    FirstRows,
    Headings,
    Sheet,
    check_csv,
    find_headings,
    first_rows,
    headings_at,
    sheet_of,
)
from tools.databases.files.totals import make_table
from tools.databases.files.workbooks import load_excel
from tools.databases.files.written_values import convert, findings
from tools.databases.read_only_file import ReadOnlyFile
from tools.processes import Watchdog
from tools.result import OpenError
from tools.schema import Column, ForeignKey, Table, words_of


@dataclass(frozen=True, slots=True)
class Loaded:
    """What sources said of their tables (name -> table), how tables of CSV files and workbooks were read, and what else a
    person should know."""

    notes: dict[str, Table] = field(default_factory=dict)
    sheets: tuple[Sheet, ...] = ()
    told: tuple[str, ...] = ()


_QUOTED = ", quote = '\"', escape = '\"'"
_CSV_ATTEMPTS = tuple(
    quotes + lengths
    for quotes in (_QUOTED, "")
    for lengths in ("", ", null_padding = true", ", null_padding = true, parallel = false")
)
"""What is tried in turn: the usual quotes, which DuckDB does not expect where none is in its sample, and others; rows of one
length, short rows filled with NULL, and these with line ends in quotes. `skip` is fixed, for DuckDB's guess of it drops every
row before a ragged one without a word."""


def load_csv(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices) -> Loaded:
    """One table from CSV, TSV or a gzipped one; rows of titles above the columns' names are left out. Raises OpenError."""
    check_csv(path)
    table = names.take(stem(path))
    choice = choices.get((path.name, ""), AS_DETECTED)
    with as_utf8(path, folder_of(connection)) as (text, encoding), _reading(path):
        first = first_rows(text)
        headings = _headings(first, choice)
        raw = f"{table} as text"
        _load_by("read_csv", _csv_options(path, first, headings, choice), connection, text, raw, path)
        _drop_blank_rows(connection, raw)
        read = make_table(connection, raw, table, "," if first.separator == ";" else ".", choice.keeps_total)
        connection.execute(f"DROP TABLE {quoted(raw)}")
        columns = [each[0] for each in connection.execute(f"DESCRIBE {quoted(table)}").fetchall()]
        named = choice.header is not None and columns[:1] == distinct(list(headings.names))[:1]
        told = [encoding] if encoding else []
        header = headings.header if named else None
        return Loaded(
            sheets=(sheet_of(connection, table, path, "", first.rows, header, read, choice.keeps_total, told),)
        )


def folder_of(connection: duckdb.DuckDBPyConnection) -> Path | None:
    """Where the file of a database lies; None where it has none."""
    row = connection.execute("SELECT path FROM duckdb_databases() WHERE database_name = current_database()").fetchone()
    return Path(row[0]).parent if row and row[0] else None


def _headings(first: FirstRows, choice: Choice) -> Headings:
    if choice.header in (DETECT, None):
        return find_headings(first.rows)
    return headings_at(first.rows, min(choice.header or 0, len(first.rows) - 1))


def _csv_options(path: Path, first: FirstRows, headings: Headings, choice: Choice) -> list[str]:
    """How DuckDB reads the file, one way after another. It is told the names where two rows make them or where its own reading
    of them would keep line ends."""
    tabs = path.name.removesuffix(".gz").lower().endswith((".tsv", ".tab"))
    fixed = ", all_varchar = true" + (", delim = '\t'" if tabs else "")
    names = distinct(list(headings.names))
    is_told = headings.data - headings.header > 1 or any("\n" in cell for cell in _row(first, headings.header))
    if choice.header is not None and is_told and headings.data < len(first.rows):
        listed = ", ".join(map(literal, names))
        return [
            f", skip = {first.rows_before[headings.data]}, header = false, names = [{listed}]{fixed}{attempt}"
            for attempt in _CSV_ATTEMPTS
        ]
    skip = first.rows_before[headings.header] if 0 < headings.header < len(first.rows) else 0
    named = "" if choice.header == DETECT else f", header = {str(choice.header is not None).lower()}"
    return [f", skip = {skip}{named}{fixed}{attempt}" for attempt in _CSV_ATTEMPTS]


def _row(first: FirstRows, place: int) -> list[str]:
    return first.rows[place] if place < len(first.rows) else []


def _drop_blank_rows(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Rows whose cells are all empty, which spreadsheets leave behind. Of one column, an empty cell is a value like any."""
    columns = [quoted(each[0]) for each in connection.execute(f"DESCRIBE {quoted(table)}").fetchall()]
    if len(columns) > 1:
        blank = " AND ".join(f"{column} IS NULL" for column in columns)
        connection.execute(f"DELETE FROM {quoted(table)} WHERE {blank}")


_JSON_OBJECT = 16 << 20  # bytes that DuckDB gives one object unless told otherwise; it takes twice as much memory
_NOT_BLANK = re.compile(r"\S")
_DEEPEST = 4  # levels at which lists are looked for


def load_json(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices) -> Loaded:
    """One table from a JSON array of objects or from one object a line; lists of objects within a single object are tables of
    their own. Raises OpenError."""
    table = names.take(stem(path))
    with as_utf8(path, folder_of(connection)) as (text, encoding), _reading(path):
        largest = max(_JSON_OBJECT, min(text.stat().st_size, 1 << 30))
        options = f", sample_size = -1, maximum_object_size = {largest}"
        numbers = _json_numbers(connection, text, options)
        try:
            _load_by("read_json", [options + numbers], connection, text, table, path)
        except OpenError as error:
            raise OpenError(_broken_json(path, text) or str(error)) from error
        told = [encoding] if encoding else []
        if made := _unwrapped(connection, table, names):
            named = ", ".join(f"“{each}”" for each in made)
            told.append(f"the lists of its only object are its tables: {named}; what stands next to them is left out")
        for each in made or [table]:
            told += _convert_json(connection, each)
    return Loaded(told=tuple(f"{path.name}: {each}" for each in told))


def _broken_json(path: Path, text: Path) -> str:
    """Where a file of moderate size is no JSON; empty where it is, or is too large to say."""
    try:
        content = (
            text.read_text(encoding="utf-8") if text.stat().st_size < _JSON_OBJECT and text.suffix != ".gz" else ""
        )
    except (OSError, UnicodeError):
        return ""
    place, decoder = 0, json.JSONDecoder()
    while place < len(content) and (start := _NOT_BLANK.search(content, place)):
        try:
            _, place = decoder.raw_decode(content, start.start())
        except json.JSONDecodeError as error:
            return f"cannot read {path}: no JSON in line {error.lineno}, column {error.colno}: {error.msg.lower()}"
        except RecursionError:
            return ""
    return ""


def _json_numbers(connection: duckdb.DuckDBPyConnection, path: Path, options: str) -> str:
    """The option that reads columns of fractions as they are written, so that no digit is lost; empty where there is none."""
    source = literal(_without_wildcards(str(path)))
    try:
        described = connection.execute(f"DESCRIBE FROM read_json({source}{options})").fetchall()
    except duckdb.Error:
        return ""  # the reading itself says why
    if all(type_ != "DOUBLE" for _, type_, *_ in described):
        return ""
    types = ", ".join(
        f"{literal(name)}: {literal('JSON' if type_ == 'DOUBLE' else type_)}" for name, type_, *_ in described
    )
    return f", columns = {{{types}}}"


def _convert_json(connection: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    """Give types to columns of values of several kinds, to fractions, and to texts that are dates; what is to be said of them.
    Texts of digits stay texts, for JSON has numbers."""
    described = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    mixed = [name for name, type_, *_ in described if type_ == "JSON" and _are_scalars(connection, table, name)]
    texts = [name for name, type_, *_ in described if type_ == "VARCHAR"]
    if mixed:
        plain = ", ".join(f"{quoted(name)} ->> '$' AS {quoted(name)}" for name in mixed)
        connection.execute(
            f"CREATE OR REPLACE TABLE {quoted(table)} AS SELECT * REPLACE ({plain}) FROM {quoted(table)}"
        )
    found = findings(connection, quoted(table), [*mixed, *texts])
    kept = [each for each in found if each.column in mixed or each.type_ in ("DATE", "TIMESTAMP", "TIMESTAMPTZ")]
    convert(connection, table, kept)
    return [f"column “{each.column}” is {each.note}" for each in kept if each.warns]


def _are_scalars(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> bool:
    nested = f"SELECT count(*) FROM {quoted(table)} WHERE json_type({quoted(column)}) IN ('OBJECT', 'ARRAY')"
    return connection.execute(nested).fetchone() == (0,)


def _unwrapped(connection: duckdb.DuckDBPyConnection, table: str, names: TableNames) -> list[str]:
    """The tables that were made of the lists of objects in the table's only row, which is gone then; none if it has several."""
    if connection.execute(f"SELECT count(*) FROM (FROM {quoted(table)} LIMIT 2)").fetchone() != (1,):
        return []
    relation = connection.table(quoted(table))
    lists = list(_lists(zip(relation.columns, relation.types, strict=True)))
    if not lists:
        return []
    wrapper = f"{table} wrapped"
    connection.execute(f"ALTER TABLE {quoted(table)} RENAME TO {quoted(wrapper)}")
    made = []
    for path in lists:
        name = table if len(lists) == 1 else names.take(path[-1], f"{table}_{path[-1]}")
        item = f"SELECT unnest({'.'.join(map(quoted, path))}) AS item FROM {quoted(wrapper)}"
        connection.execute(f"CREATE TABLE {quoted(name)} AS SELECT unnest(item) FROM ({item})")
        made.append(name)
    connection.execute(f"DROP TABLE {quoted(wrapper)}")
    return made


def _lists(fields: Iterable[tuple[str, Any]], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where lists of objects are within objects; the fields' types are DuckDB's."""
    for name, type_ in fields:
        if type_.id == "list" and type_.children[0][1].id == "struct":
            yield (*above, name)
        elif type_.id == "struct" and len(above) < _DEEPEST:
            yield from _lists(type_.children, (*above, name))


def load_parquet(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices) -> Loaded:
    """One table from a Parquet file. Raises OpenError."""
    _load_by("read_parquet", ("",), connection, path, names.take(stem(path)), path)
    return Loaded()


def load_workbook(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices) -> Loaded:
    """The tables of a workbook. Raises OpenError."""
    with _reading(path):
        return Loaded(sheets=tuple(load_excel(connection, path, names, choices)))


def _load_by(
    reader: str, attempts: Sequence[str], connection: duckdb.DuckDBPyConnection, source: Path, table: str, path: Path
) -> None:
    """Make the table by the first attempt that reads `source`, the text of the file at `path`. Raises OpenError."""
    named = literal(_without_wildcards(str(source)))
    errors: list[str] = []
    for options in attempts:
        try:
            connection.execute(f"CREATE OR REPLACE TABLE {quoted(table)} AS FROM {reader}({named}{options})")
        except duckdb.OutOfMemoryException as error:
            if not errors:
                raise OpenError(f"{path} takes too much memory to load; load a part of it") from error
        except duckdb.Error as error:
            errors.append(_line(error).replace(str(source), str(path)))
        else:
            if not _is_unsplit(connection, table):
                return
            errors.append("its rows do not have the same number of columns")
    connection.execute(f"DROP TABLE IF EXISTS {quoted(table)}")
    raise OpenError(f"cannot read {path}: {errors[0]}")


def _line(error: duckdb.Error) -> str:
    first = str(error).strip().splitlines()[0]
    nested = re.search(r"JSON exceeds maximum recursion depth of (\d+)", first)
    return f"it is nested more than {nested[1]} levels deep; save a part of it that is flatter" if nested else first


def _is_unsplit(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    """True when the only column's name still holds separators: DuckDB found no way to split the rows evenly."""
    columns = connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
    return len(columns) == 1 and re.search(r"[,;\t|]", columns[0][0]) is not None


def _without_wildcards(path: str) -> str:
    """DuckDB takes a path for a pattern; in brackets each of its signs means itself."""
    return re.sub(r"([\[*?])", r"[\1]", path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of the engine about this file as OpenError."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise OpenError(f"{path} takes too much memory to load; load a part of it") from error
    except duckdb.Error as error:
        raise OpenError(f"cannot read {path}: {_line(error)}") from error


SQLITE_BATCH, BATCH_WITH_BLOBS = 8192, 64
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


def load_sqlite(connection: duckdb.DuckDBPyConnection, path: Path, names: TableNames, choices: Choices) -> Loaded:
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
    words = {name: (words_of(name), words_of(other)) for name, other in called.items() if name != other}
    kept = (table for table in tables if table.name in called)
    return Loaded({called[table.name]: _renamed(table, called, words) for table in kept})


def _renamed(table: Table, called: dict[str, str], words: dict[str, tuple[frozenset[str], frozenset[str]]]) -> Table:
    """The table with the new names; words: of each name that changed, its old and new ones."""
    keys = (replace(key, ref_table=called[key.ref_table]) for key in table.foreign_keys if key.ref_table in called)
    made_of = table.made_of.union(*(new for old, new in words.values() if old <= table.made_of))
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
    types = [_sqlite_type(column, storage) for column, storage in zip(table.columns, storages, strict=True)]
    names = distinct([column.name for column in table.columns])
    create_table(connection, name, names, types)
    items = ", ".join(
        f"CAST({quoted(column.name)} AS TEXT)" if type_ == "VARCHAR" else quoted(column.name)
        for column, type_ in zip(table.columns, types, strict=True)
    )
    cursor = source.execute(f"SELECT {items} FROM {quoted(table.name)}")
    while rows := cursor.fetchmany(BATCH_WITH_BLOBS if "BLOB" in types else SQLITE_BATCH):
        insert_columns(connection, name, types, list(zip(*rows, strict=True)))
    for column, storage, copied in zip(table.columns, storages, names, strict=True):
        if storage == {"text"} and _declared(column) in ("DATE", "TIMESTAMP"):
            _read_as_dates(connection, name, copied)
    untyped = all(_declared(column) == "VARCHAR" for column in table.columns)
    read = [
        copied
        for column, storage, type_, copied in zip(table.columns, storages, types, names, strict=True)
        if type_ == "VARCHAR" and "text" in storage and (untyped or _declared(column) in ("BIGINT", "DOUBLE"))
    ]
    convert(connection, name, findings(connection, quoted(name), read))


def _storages(source: sqlite3.Connection, table: Table) -> list[frozenset[str]]:
    """The storage classes of each column's values, found in one pass over the table."""
    found = ", ".join(f"group_concat(DISTINCT typeof({quoted(column.name)}))" for column in table.columns)
    row = source.execute(f"SELECT {found} FROM {quoted(table.name)}").fetchone()
    return [frozenset((classes or "").split(",")) - {"null", ""} for classes in row]


def _sqlite_type(column: Column, storage: frozenset[str]) -> str:
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
