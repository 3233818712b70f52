"""Reads the schema of a SQLite database through an open connection: PRAGMAs, bounded row counts, samples, DDL comments.

Views and generated columns are somebody's SQL, which runs when they are sampled; time and the length of values are bounded.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from time import monotonic

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.databases.choices import MAX_LENGTH, ROWS_LOOKED_AT, VIEWS_S, samples
from tools.schema import Column, ForeignKey, Table, words_of
from tools.sql.scope import parse_quietly

COUNTED_ROWS = 1_000_000
"""SQLite counts by walking the table (about 50 ms per million rows); a larger table's count stays unknown."""

DEADLINE_S = 60.0
LONGEST_VALUE = 64 << 20  # bytes
_TABLES = """
SELECT name, type, coalesce(sql, '') FROM sqlite_master
WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
ORDER BY type, rowid
"""
_VIRTUAL = "CREATE VIRTUAL"
_COMPUTED = (2, 3)  # what `PRAGMA table_xinfo` says of generated columns


def read_schema(connection: sqlite3.Connection) -> tuple[Table, ...]:
    """Tables in order of creation, then views; without the tables that a virtual table keeps its data in.

    A view or virtual table that SQLite itself cannot read (a missing table or module) is left out. A view that takes long, or
    makes values that are too long, has no samples. Raises sqlite3.Error, with SQLITE_INTERRUPT after `DEADLINE_S`.
    """
    clock = _Clock(connection)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    entries = connection.execute(_TABLES).fetchall()
    shadows = tuple(name.lower() + "_" for name, _, sql in entries if sql.upper().startswith(_VIRTUAL))
    tables = []
    for name, kind, sql in entries:
        if not (shadows and name.lower().startswith(shadows)):
            try:
                tables.append(_table(connection, clock, name, kind == "table", sql))
            except sqlite3.OperationalError as error:
                if is_interrupt(error):
                    raise
    by_name = {table.name.lower(): table for table in tables}
    return tuple(_resolved(table, by_name) for table in tables)


def quoted(name: str) -> str:
    """`name` as an identifier that no keyword and no character can break."""
    return '"' + name.replace('"', '""') + '"'


def is_interrupt(error: sqlite3.Error) -> bool:
    """Whether a statement was stopped."""
    return error_code(error) == sqlite3.SQLITE_INTERRUPT


def error_code(error: sqlite3.Error) -> int | None:
    """SQLite's code of an error; the module's own errors have none."""
    return getattr(error, "sqlite_errorcode", None)


class _Clock:
    """Stops what a connection runs when its time is up."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._until_s = self._given_up_s = monotonic() + DEADLINE_S
        self._left_for_views_s = VIEWS_S
        connection.set_progress_handler(lambda: monotonic() > self._until_s, 10_000)

    @contextmanager
    def of_views(self) -> Iterator[None]:
        """What runs inside takes from the time that views have together."""
        started_s = monotonic()
        self._until_s = min(self._given_up_s, started_s + self._left_for_views_s)
        try:
            yield
        finally:
            self._left_for_views_s -= monotonic() - started_s
            self._until_s = self._given_up_s


def _table(connection: sqlite3.Connection, clock: _Clock, name: str, is_table: bool, sql: str) -> Table:
    info = [row for row in connection.execute(f"PRAGMA table_xinfo({quoted(name)})") if row[6] != 1]
    if not info:
        raise sqlite3.OperationalError(f"{name} has no columns")
    comment, column_comments = _comments(sql)
    computed = {row[1] for row in info if row[6] in _COMPUTED}
    try:
        with nullcontext() if is_table else clock.of_views():
            values = _samples(connection, name, [row[1] for row in info])
    except sqlite3.Error as error:
        if error_code(error) != sqlite3.SQLITE_TOOBIG and (is_table or not is_interrupt(error)):
            raise
        values = [()] * len(info)
    columns = tuple(
        Column(
            column,
            type_,
            key > 0,
            not (not_null or key),
            column_comments.get(column.lower(), ""),
            found,
            words_of(_expression(sql, column)) if column in computed else frozenset(),
        )
        for (_, column, type_, not_null, _, key, _), found in zip(info, values, strict=True)
    )
    count = _count(connection, name) if is_table else None
    is_stored = is_table and not sql.upper().startswith(
        _VIRTUAL
    )  # a virtual one may show the rows or the words of another
    made_of = frozenset[str]() if is_stored else words_of(sql)
    return Table(name, columns, _foreign_keys(connection, name), comment, count, made_of)


def _foreign_keys(connection: sqlite3.Connection, name: str) -> tuple[ForeignKey, ...]:
    """In the order of the DDL (SQLite lists the last first); without ref_columns where the DDL leaves them out."""
    grouped: dict[int, list[tuple[str, str, str | None]]] = {}
    for id_, _, ref_table, column, ref_column, *_ in connection.execute(f"PRAGMA foreign_key_list({quoted(name)})"):
        grouped.setdefault(id_, []).append((column, ref_table, ref_column))
    return tuple(
        ForeignKey(tuple(row[0] for row in rows), rows[0][1], tuple(row[2] for row in rows if row[2]))
        for _, rows in sorted(grouped.items(), reverse=True)
    )


def _resolved(table: Table, by_name: Mapping[str, Table]) -> Table:
    """Foreign keys in the spelling of the tables they refer to; REFERENCES without columns means the primary key.

    A key to a table or a column that does not exist is dropped: nothing could be joined by it.
    """
    keys = []
    for key in table.foreign_keys:
        target = by_name.get(key.ref_table.lower())
        if target is None:
            continue
        wanted = key.ref_columns or tuple(column.name for column in target.columns if column.primary_key)
        own, theirs = [table.column(name) for name in key.columns], [target.column(name) for name in wanted]
        if len(own) == len(theirs) and None not in own and None not in theirs:
            names = tuple(column.name for column in own if column), tuple(column.name for column in theirs if column)
            keys.append(ForeignKey(names[0], target.name, names[1]))
    return replace(table, foreign_keys=tuple(keys))


def _count(connection: sqlite3.Connection, name: str) -> int | None:
    bounded = f"SELECT count(*) FROM (SELECT 1 FROM {quoted(name)} LIMIT {COUNTED_ROWS + 1})"
    count = int(connection.execute(bounded).fetchone()[0])
    return count if count <= COUNTED_ROWS else None


def _samples(connection: sqlite3.Connection, name: str, columns: list[str]) -> list[tuple[str, ...]]:
    short = ", ".join(
        f"CASE WHEN typeof({column}) = 'text' THEN substr({column}, 1, {MAX_LENGTH + 1})"
        f" WHEN typeof({column}) <> 'blob' THEN {column} END"
        for column in map(quoted, columns)
    )
    rows = connection.execute(f"SELECT {short} FROM {quoted(name)} LIMIT {ROWS_LOOKED_AT}").fetchall()
    return samples(rows, len(columns))


def _expression(sql: str, column: str) -> str:
    """What computes the generated column, by the table's DDL; all of the DDL where it cannot be told apart."""
    try:
        definitions = parse_quietly(sql, "sqlite")[0].find_all(exp.ColumnDef)
        definition = next(each for each in definitions if each.name.casefold() == column.casefold())
    except (SqlglotError, RecursionError, LookupError, StopIteration):
        return sql
    computed = definition.find(exp.ComputedColumnConstraint, exp.GeneratedAsIdentityColumnConstraint)
    return sql if computed is None else " ".join(each.name for each in computed.find_all(exp.Identifier))


def _comments(sql: str) -> tuple[str, dict[str, str]]:
    """What the comments of a CREATE TABLE say of the table and, by lower-case name, of its columns.

    SQLite keeps the text of the statement, comments included, and has no other place for them.
    """
    if "--" not in sql and "/*" not in sql:
        return "", {}
    try:
        create = parse_quietly(sql, "sqlite")[0]
    except (SqlglotError, RecursionError, IndexError):
        return "", {}
    columns = {}
    for definition in create.find_all(exp.ColumnDef):
        said = dict.fromkeys(text.strip() for node in definition.walk() for text in node.comments or [])
        columns[definition.name.lower()] = "; ".join(filter(None, said))
    return "; ".join(text.strip() for text in create.comments or []), columns
