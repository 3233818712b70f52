"""How tables are connected: foreign keys as an undirected graph, shortest paths in it, and the join conditions along them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tools.schema import Schema, Table

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Edge:
    """`columns[i]` of `table` equals `ref_columns[i]` of `ref_table` in a join; `table` holds the foreign key."""

    table: str
    columns: tuple[str, ...]
    ref_table: str
    ref_columns: tuple[str, ...]

    def other(self, table: str) -> str:
        """The table at the far end."""
        return self.ref_table if table == self.table else self.table

    def conditions(self, dialect: str) -> Iterator[str]:
        """`album.artist_id = artist.id`, one text per pair of columns, quoted only if a name needs it."""
        for left, right in zip(self.columns, self.ref_columns, strict=True):
            yield f"{name_sql(self.table, left, dialect=dialect)} = {name_sql(self.ref_table, right, dialect=dialect)}"


def name_sql(*parts: str, dialect: str) -> str:
    """A dotted name; parts that are not plain words are quoted in the dialect's way."""
    pieces = [piece for part in parts for piece in (part.split(".") if _is_qualified(part) else [part])]
    return ".".join(exp.to_identifier(piece, quoted=not _PLAIN_NAME.fullmatch(piece)).sql(dialect) for piece in pieces)


def _is_qualified(name: str) -> bool:
    """Whether a name has a schema and a table, `sales.orders`."""
    return "." in name and all(_PLAIN_NAME.fullmatch(piece) for piece in name.split("."))


def edges(schema: Schema) -> tuple[Edge, ...]:
    """Every foreign key whose tables exist; if the database declares none at all, keys guessed from column names."""
    return tuple(dict.fromkeys(_declared(schema))) or tuple(dict.fromkeys(_guessed(schema)))


def _declared(schema: Schema) -> Iterator[Edge]:
    by_name = {table.name.casefold(): table for table in schema.tables}
    for table in schema.tables:
        for key in table.foreign_keys:
            referred = by_name.get(key.ref_table.casefold())
            columns = key.ref_columns or _primary_key(referred)
            if referred is not None and len(columns) == len(key.columns):
                yield Edge(table.name, _as_named(table, key.columns), referred.name, _as_named(referred, columns))


def _as_named(table: Table, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns as the table spells them: SQLite's keys may differ in case."""
    return tuple(column.name if (column := table.column(name)) else name for name in columns)


def _primary_key(table: Table | None) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if column.primary_key) if table else ()


def _guessed(schema: Schema) -> Iterator[Edge]:
    """`artist_id` of albums refers to `artist_id` or `id` of artists. Files declare no keys, but their names are similar."""
    by_name = {table.name.casefold(): table for table in schema.tables}
    for table in schema.tables:
        for column in table.columns:
            owner = _named_by(column.name, by_name)
            if owner is not None and owner.name != table.name:
                key = owner.column(column.name) or owner.column("id")
                if key is not None:
                    yield Edge(table.name, (column.name,), owner.name, (key.name,))


def _named_by(column: str, by_name: dict[str, Table]) -> Table | None:
    """The table that an `x_id` column is named after: x, xs, or x with another plural."""
    subject = re.sub(r"(?i)_?(id|key|code|no)$", "", column).casefold()
    if not subject or subject == column.casefold():
        return None
    names = (subject, subject + "s", subject + "es", subject.removesuffix("y") + "ies")
    return next((by_name[name] for name in names if name in by_name), None)


def shortest_paths(graph: Sequence[Edge], start: Iterable[str], goal: str) -> list[tuple[Edge, ...]]:
    """The shortest paths from any of the `start` tables to `goal`: none, the only one, or two of several."""
    touching = _by_table(graph)
    level: dict[str, list[tuple[Edge, ...]]] = {table: [()] for table in start}
    reached = set(level)
    while level and goal not in level:
        following: dict[str, list[tuple[Edge, ...]]] = defaultdict(list)
        for table, paths in level.items():
            for edge in touching[table]:
                there = edge.other(table)
                if there not in reached:
                    following[there] = (following[there] + [(*path, edge) for path in paths])[:2]
        level = following
        reached |= set(level)
    return level.get(goal, [])


def _by_table(graph: Sequence[Edge]) -> dict[str, list[Edge]]:
    touching: dict[str, list[Edge]] = defaultdict(list)
    for edge in graph:
        for table in {edge.table, edge.ref_table}:
            touching[table].append(edge)
    return touching


def connect(graph: Sequence[Edge], tables: Sequence[str]) -> tuple[Edge, ...] | None:
    """Edges of a small tree that contains all the tables, each joined to the tree by a shortest path; None if there is no such
    tree."""
    waiting = list(dict.fromkeys(tables))
    tree: list[Edge] = []
    inside = waiting[:1]
    waiting = [name for name in waiting if name not in inside]
    while waiting:
        options = [path for name in waiting for path in shortest_paths(graph, inside, name)[:1]]
        if not options:
            return None
        for edge in min(options, key=len):
            tree.append(edge)
            inside += [name for name in (edge.table, edge.ref_table) if name not in inside]
        waiting = [name for name in waiting if name not in inside]
    return tuple(tree)
