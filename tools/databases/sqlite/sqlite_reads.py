"""What SQLite's own authorizer lets a statement read: the second lock of hidden tables and columns, which reads no SQL.

SQLite asks the authorizer about every column that a statement reads, by the name of its table. A visible view may read what it
read when it was looked at; SQLite names the view then.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tools.guard.allowed_functions import never
from tools.schema import Schema, Table

_SYSTEM_TABLE = re.compile(r"^(?:sqlite_|pragma_|dbstat$|fts3tokenize$|bytecode$|tables_used$)", re.IGNORECASE)
_ROW_SOURCES = {"json_each", "json_tree"}

_Read = tuple[str, str, str]  # table, column ("" where rows are only counted), view


class Contents(Protocol):
    """What is in a file: the names of everything, and which of them are virtual tables."""

    names: frozenset[str]
    virtual_tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class SQLiteReads:
    """What may be read; all names in lower case.

    `columns`: by table; None where all of them may be read. `hidden`: the names of all else in the file. `kept`: those in which
    visible virtual tables keep their rows. `in_views`: what visible views read besides.
    """

    columns: dict[str, frozenset[str] | None]
    hidden: frozenset[str]
    kept: frozenset[str]
    in_views: frozenset[_Read]

    @classmethod
    def of(cls, seen: Schema, whole: Schema, contents: Contents, in_views: frozenset[_Read]) -> "SQLiteReads":
        """For those who see `seen` of `whole`, in a file with these contents."""
        columns = {table.name.lower(): _visible(table, whole) for table in seen.tables}
        keeping = tuple(f"{name.lower()}_" for name in contents.virtual_tables if name.lower() in columns)
        known = {table.name.lower() for table in whole.tables}
        names = {name.lower() for name in contents.names} - columns.keys()
        kept = {name for name in names - known if keeping and name.startswith(keeping)}
        return cls(columns, frozenset(names - kept), frozenset(kept), in_views)

    def may(self, table: str, column: str, view: str) -> bool:
        """Whether the column, "" for the mere number of rows, may be read; `view`: on whose behalf, "" for none.

        SQLite asks after no column of what the statement named itself; of that it asks for the number of rows alone.
        """
        table, column, view = table.lower(), column.lower(), view.lower()
        if view and (table, column, view) in self.in_views:
            return True
        if table in self.columns:
            visible = self.columns[table]
            return visible is None or not column or column in visible
        return table in self.kept or table in _ROW_SOURCES or (not column and table not in self.hidden)


def _visible(table: Table, whole: Schema) -> frozenset[str] | None:
    original = whole.table(table.name)
    is_whole = original is not None and len(original.columns) == len(table.columns)
    return None if is_whole else frozenset(column.name.lower() for column in table.columns)


def authorizer(reads: SQLiteReads | None) -> Callable[..., int]:
    """Allows what a SELECT over plain tables needs, and nothing else; with `reads`, of these tables and columns alone."""

    def authorize(action: int, first: str | None, second: str | None, _: str | None, view: str | None) -> int:
        allowed = (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (
                action == sqlite3.SQLITE_READ
                and not _SYSTEM_TABLE.match(first or "")
                and (reads is None or reads.may(first or "", second or "", view or ""))
            )
            or (action == sqlite3.SQLITE_FUNCTION and not never((second or "").lower()))
            or (
                action == sqlite3.SQLITE_PRAGMA and first == "data_version" and second is None
            )  # full-text search asks this
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return authorize


def reads_of(connection: sqlite3.Connection, statements: Iterable[str]) -> frozenset[_Read]:
    """What the statements read, by SQLite's own account. One that SQLite cannot read counts for nothing."""
    found: set[_Read] = set()

    def note(action: int, first: str | None, second: str | None, _: str | None, view: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            found.add(((first or "").lower(), (second or "").lower(), (view or "").lower()))
        return sqlite3.SQLITE_OK

    connection.set_authorizer(note)
    try:
        for statement in statements:
            try:
                connection.execute(f"EXPLAIN {statement}").fetchall()
            except sqlite3.Error:
                continue
    finally:
        connection.set_authorizer(None)
    return frozenset(found)
