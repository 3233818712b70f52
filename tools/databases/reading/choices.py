"""The values of columns that have only a few: flags, codes, states. Read once per open database, in bounded time.

Half a second per column and three seconds in all at most; columns whose turn does not come have no choices.
"""

import threading
import time
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from sqlglot import exp

from tools.databases.database import Database
from tools.databases.reading.kept_values import read_or_kept
from tools.result import Limits, QueryError
from tools.schema import Column, ColumnRef, Schema, Table
from tools.sql.scope import type_kind

MOST_CHOICES = 6
LONGEST_CHOICE = 12
LARGEST_CODE = 9  # larger whole numbers count or measure something
COLUMN_DEADLINE_S = 0.5
DEADLINE_S = 3.0

_CHOICES: WeakKeyDictionary[Database, dict[ColumnRef, tuple[str, ...]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def with_choices(schema: Schema, database: Database) -> Schema:
    """The schema, or a part of it, with the choices of its columns."""
    with _LOCK:
        if database not in _CHOICES:
            _CHOICES[database] = _read(database)
        return chosen(schema, _CHOICES[database])


def chosen(schema: Schema, choices: dict[ColumnRef, tuple[str, ...]]) -> Schema:
    """The schema with these choices."""
    return replace(
        schema,
        tables=tuple(
            replace(t, columns=tuple(replace(c, choices=choices.get((t.name, c.name), ())) for c in t.columns))
            for t in schema.tables
        ),
    )


def _read(database: Database) -> dict[ColumnRef, tuple[str, ...]]:
    until = time.perf_counter() + DEADLINE_S
    candidates = {(table.name, column.name): (table, column) for table, column in _candidates(database.schema())}

    def read(place: ColumnRef) -> tuple[tuple[str, ...], bool] | None:
        left_s = until - time.perf_counter()
        found = _values(database, *candidates[place], min(left_s, COLUMN_DEADLINE_S)) if left_s > 0 else None
        return None if found is None else (found, True)

    found = read_or_kept(database, "choices", list(candidates), read)
    return {place: tuple(values) for place, (values, _) in found.items() if values}


def _candidates(schema: Schema) -> list[tuple[Table, Column]]:
    """Columns that may have few values, as far as their samples tell, and that are no keys."""
    keys = {(table.name, name) for table in schema.tables for key in table.foreign_keys for name in key.columns}
    return [
        (table, column)
        for table in schema.tables
        for column in table.columns
        if not column.primary_key and (table.name, column.name) not in keys and _may_have_few(column)
    ]


def _may_have_few(column: Column) -> bool:
    if not column.samples or max(map(len, column.samples)) > LONGEST_CHOICE:
        return False
    kind = type_kind(column.type)
    return kind in ("text", "boolean") or (len(column.samples) < 3 and all(map(_is_code, column.samples)))


def _is_code(text: str) -> bool:
    return text.isdecimal() and int(text) <= LARGEST_CODE


def _values(database: Database, table: Table, column: Column, deadline_s: float) -> tuple[str, ...] | None:
    """All values in order; none if there are too many, too long ones, or if hardly any occurs twice.

    None where they could not be read.
    """
    name = exp.column(column.name, quoted=True)
    home, _, own = table.name.rpartition(".")
    query = exp.select(name).distinct().from_(exp.table_(own, db=home or None, quoted=True))
    query = query.where(name.copy().is_(exp.null()).not_()).limit(MOST_CHOICES + 1)
    result = database.execute(query.sql(database.dialect), Limits(deadline_s=deadline_s, max_rows=MOST_CHOICES + 1))
    if isinstance(result, QueryError):
        return None
    if len(result.rows) > MOST_CHOICES:
        return ()
    texts = sorted(_text(value) for (value,) in result.rows if value != "")
    few = table.row_count is None or 2 * len(texts) <= table.row_count
    fits = all(len(text.strip()) > 0 and len(text) <= LONGEST_CHOICE for text in texts)
    coded = type_kind(column.type) in ("text", "boolean") or all(map(_is_code, texts))
    return tuple(texts) if few and fits and coded else ()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
