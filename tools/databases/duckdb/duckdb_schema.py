"""Reads the schema of a DuckDB database through one of its cursors: catalogue, exact row counts, samples."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from time import monotonic

import duckdb

from tools.databases.reading.samples import MAX_LENGTH, ROWS_LOOKED_AT, VIEWS_S, samples
from tools.processes.watchdog import Watchdog
from tools.schema import Column, ForeignKey, Table, words_of

_COLUMNS = """
SELECT c.schema_name, c.table_name, c.column_name, c.data_type, c.is_nullable, coalesce(c.comment, ''),
       coalesce(t.comment, v.comment, ''), t.table_name IS NOT NULL, c.column_default, v.sql
FROM duckdb_columns() c
LEFT JOIN duckdb_tables() t USING (database_name, schema_name, table_name)
LEFT JOIN duckdb_views() v ON v.database_name = c.database_name AND v.schema_name = c.schema_name
                          AND v.view_name = c.table_name
WHERE NOT c.internal AND c.database_name = current_database()
ORDER BY c.schema_name <> 'main', c.schema_name, t.table_oid IS NULL, coalesce(t.table_oid, v.view_oid), c.column_index
"""

_KEYS = """
SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table, referenced_column_names
FROM duckdb_constraints()
WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')
ORDER BY constraint_index
"""


def read_schema(
    cursor: duckdb.DuckDBPyConnection, order: Sequence[str], notes: Mapping[str, Table]
) -> tuple[Table, ...]:
    """Tables in the given order, then as DuckDB has them, then views; outside `main` a name carries its schema.

    `notes` are what the source of a loaded copy said of a table, by its name here: keys and comments that a copy does not
    carry. A view that fails or takes long has no samples. Raises duckdb.Error.
    """
    keys = _keys(cursor)
    tables = []
    left_for_views_s = VIEWS_S
    for (schema, name), rows in _columns(cursor).items():
        primary, foreign = keys.get((schema, name), ((), ()))
        is_table, comment = rows[0][7], rows[0][6]
        relation = f"{quoted(schema)}.{quoted(name)}"
        started_s = monotonic()
        with nullcontext() if is_table else Watchdog(left_for_views_s, cursor.interrupt):
            values = _samples(cursor, relation, [(row[2], row[3]) for row in rows])
        left_for_views_s -= 0 if is_table else monotonic() - started_s
        columns = tuple(
            Column(row[2], row[3], row[2] in primary, row[4] and row[2] not in primary, row[5], value, words_of(row[8]))
            for row, value in zip(rows, values, strict=True)
        )
        count = _count(cursor, relation) if is_table else None
        shown_name = name if schema == "main" else f"{schema}.{name}"
        table = Table(shown_name, columns, foreign, comment, count, words_of(rows[0][9]))
        tables.append(_with_note(table, notes.get(table.name)))
    places = {name: place for place, name in enumerate(order)}
    return tuple(sorted(tables, key=lambda table: places.get(table.name, len(places))))


def quoted(name: str) -> str:
    """`name` as an identifier that no keyword and no character can break."""
    return '"' + name.replace('"', '""') + '"'


def _columns(cursor: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], list[tuple]]:  # type: ignore[type-arg]
    grouped = defaultdict(list)
    for row in cursor.execute(_COLUMNS).fetchall():
        grouped[row[0], row[1]].append(row)
    return grouped


def _keys(cursor: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], tuple[tuple[str, ...], tuple[ForeignKey, ...]]]:
    primary: dict[tuple[str, str], tuple[str, ...]] = {}
    foreign: dict[tuple[str, str], list[ForeignKey]] = defaultdict(list)
    for schema, table, kind, columns, ref_table, ref_columns in cursor.execute(_KEYS).fetchall():
        if kind == "PRIMARY KEY":
            primary[schema, table] = tuple(columns)
        else:
            foreign[schema, table].append(ForeignKey(tuple(columns), ref_table, tuple(ref_columns)))
    return {key: (primary.get(key, ()), tuple(foreign.get(key, ()))) for key in primary.keys() | foreign.keys()}


def _count(cursor: duckdb.DuckDBPyConnection, relation: str) -> int:
    row = cursor.execute(f"SELECT count(*) FROM {relation}").fetchone()
    return int(row[0]) if row else 0


def _samples(cursor: duckdb.DuckDBPyConnection, relation: str, columns: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    """No samples where a view fails: a view of a file may name what is not there or may not be read."""
    texts = ", ".join(
        "NULL" if type_ == "BLOB" else f"left(CAST({quoted(name)} AS VARCHAR), {MAX_LENGTH + 1})"
        for name, type_ in columns
    )
    try:
        rows = cursor.execute(f"SELECT {texts} FROM {relation} LIMIT {ROWS_LOOKED_AT}").fetchall()
    except duckdb.Error:
        return [()] * len(columns)
    return samples(rows, len(columns))


def _with_note(table: Table, note: Table | None) -> Table:
    if note is None:
        return table
    columns = tuple(
        Column(column.name, column.type, said.primary_key, said.nullable, said.comment, column.samples, said.made_of)
        if (said := note.column(column.name))
        else column
        for column in table.columns
    )
    return Table(table.name, columns, note.foreign_keys, note.comment, table.row_count, note.made_of)
