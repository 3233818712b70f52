"""Row counts and sample values of many tables at a server, a hundred tables to a query: a round trip may take long.

A query that fails, for a table that may be listed but not read, is split until the table at fault is alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tools.databases.reading.samples import MAX_LENGTH, ROWS_LOOKED_AT, samples

COUNTED_ROWS = 100_000
"""A server may hold billions of rows: counting stops here, and a larger table's count stays unknown."""
COUNTED_IN_ALL = 10_000_000
SAMPLED_IN_ALL = 20_000
TABLES_AT_ONCE = 100

Key = tuple[str | None, str]  # schema, None for the default one, and name
_Entries = Sequence[Any]  # SQLAlchemy's reflected columns


@dataclass(frozen=True, slots=True)
class Contents:
    """`row_count`: None for a view and where it is not known. `samples`: of each column, three at most."""

    row_count: int | None
    samples: list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Rows looked at in each table: fewer where there are many tables."""

    sampled: int
    counted: int  # 0: count none

    @classmethod
    def of(cls, tables: int, stored: bool) -> "_Bounds":
        counted = min(COUNTED_ROWS, COUNTED_IN_ALL // max(tables, 1)) if stored else 0
        return cls(min(ROWS_LOOKED_AT, max(10, SAMPLED_IN_ALL // max(tables, 1))), counted)


def read_contents(connection: sa.Connection, tables: Mapping[Key, _Entries], stored: bool) -> dict[Key, Contents]:
    """What the tables hold. Those that are not `stored`, the views, are asked one at a time, for one may be slow."""
    bounds = _Bounds.of(len(tables), stored)
    found: dict[Key, Contents] = {}
    keys, at_once = list(tables), TABLES_AT_ONCE if stored else 1
    for start in range(0, len(keys), at_once):
        found |= _read(connection, {key: tables[key] for key in keys[start : start + at_once]}, bounds)
    return found


def _read(connection: sa.Connection, tables: Mapping[Key, _Entries], bounds: _Bounds) -> dict[Key, Contents]:
    items = list(tables.items())
    width = max(map(len, tables.values()))
    try:
        with connection.begin_nested():
            queries = [_query(i, key, entries, width, bounds) for i, (key, entries) in enumerate(items)]
            rows = connection.execute(sa.union_all(*queries)).fetchall()
    except sa.exc.SQLAlchemyError:
        if len(items) == 1:
            return {key: Contents(None, [()] * len(entries)) for key, entries in items}
        half = len(items) // 2
        return _read(connection, dict(items[:half]), bounds) | _read(connection, dict(items[half:]), bounds)
    by_table: dict[int, list[Any]] = {i: [] for i in range(len(items))}
    for row in rows:
        by_table[row[0]].append(row)
    return {key: _contents(by_table[i], len(entries), bounds) for i, (key, entries) in enumerate(items)}


def _contents(rows: list[Any], width: int, bounds: _Bounds) -> Contents:
    count = int(rows[0][1]) if rows else 0
    known = 0 < bounds.counted >= count
    return Contents(count if known else None, samples([row[2 : 2 + width] for row in rows], width))


def _query(number: int, key: Key, entries: _Entries, width: int, bounds: _Bounds) -> sa.Select[Any]:
    """The table's number here, its row count, and its columns as short texts, padded to `width` columns."""
    table = sa.table(key[1], *(sa.column(entry["name"], entry["type"]) for entry in entries), schema=key[0])
    shown = [_short(table.c[entry["name"]]) for entry in entries] + [_NOTHING] * (width - len(entries))
    count: sa.ColumnElement[Any] = sa.literal_column("0")
    if bounds.counted:
        some = sa.select(sa.literal_column("1").label("one")).select_from(table).limit(bounds.counted + 1).subquery()
        count = sa.select(sa.func.count()).select_from(some).scalar_subquery()
    named = [column.label(f"c{place}") for place, column in enumerate(shown)]
    numbered = [sa.literal_column(str(number)).label("number"), count.label("rows"), *named]
    return sa.select(sa.select(*numbered).limit(bounds.sampled).subquery())


_TEXT = sa.String(MAX_LENGTH + 1)
_NOTHING: sa.ColumnElement[Any] = sa.cast(sa.null(), _TEXT)


def _short(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return _NOTHING if isinstance(column.type, sa.LargeBinary) else sa.cast(column, _TEXT)
