"""How tables are connected, and which columns a join may equate.

How tables are connected: foreign keys as an undirected graph, shortest paths in it, and the join conditions along them.

Which columns of two tables a join may equate. They are more than `join_graph` shows to the model, because a constraint must
not be too strict.

They are declared keys and keys guessed from names, columns that refer to the same key, and columns of the same name that looks
like a key's. Two tables of which nothing is known are not constrained. Names are in lower case.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from tools.schema import Column, ColumnRef, Schema, Table
from tools.sql.scope import is_number, type_kind

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


_KEY = re.compile(r".(id|code|key|no|num|number)$")
_IDENTIFIER = re.compile(r"(^|_|[a-z])id$")


@dataclass(frozen=True, eq=False)
class Joinable:
    """`pairs[a, b]` are the (column of a, column of b) that may be equated; `pairs[b, a]` has them the other way round."""

    pairs: Mapping[tuple[str, str], frozenset[tuple[str, str]]]

    def between(self, one: str, other: str) -> frozenset[tuple[str, str]]:
        """The columns that may be equated; empty if nothing is known."""
        return self.pairs.get((one, other), frozenset())

    def alike(self, place: ColumnRef) -> frozenset[str]:
        """Names of the columns, in any table, that hold the same values as this column, its own included."""
        table, column = place
        others = (self.pairs[table, other] for other in self.neighbours.get(table, ()))
        return frozenset({column, *(there for pairs in others for here, there in pairs if here == column)})

    def adjoins(self, here: frozenset[str], table: str) -> bool:
        """Whether FROM may continue from the tables `here` to this one: they join directly, or nothing connects them."""
        return any(self.between(one, table) for one in here) or not self._connected.get(table, frozenset()) & here

    @cached_property
    def _connected(self) -> Mapping[str, frozenset[str]]:
        """For each table, all that it is connected with by joins, itself included."""
        found: dict[str, frozenset[str]] = {}
        for start in self.neighbours:
            if start not in found:
                group, edge = {start}, {start}
                while edge:
                    edge = {other for one in edge for other in self.neighbours[one]} - group
                    group |= edge
                found |= dict.fromkeys(group, frozenset(group))
        return found

    @cached_property
    def neighbours(self) -> dict[str, frozenset[str]]:
        """The tables that each table joins with."""
        return {one: frozenset(b for a, b in self.pairs if a == one and b != one) for one, _ in self.pairs}


def joinable(schema: Schema) -> Joinable:
    """The columns that joins of this schema may equate."""
    pairs: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for group in _groups(schema):
        for here, column in group:
            for there, other in group:
                pairs[here, there].add((column, other))
    for one, other, name in _namesakes(schema):
        pairs[one, other].add((name, name))
    for table in schema.tables:
        own = table.name.lower()
        pairs[own, own] |= {(column.name.lower(), column.name.lower()) for column in table.columns}
    return Joinable({key: frozenset(found) for key, found in pairs.items() if found})


def identifiers(schema: Schema) -> frozenset[ColumnRef]:
    """Keys whose values mean nothing: a table's only primary key, or a foreign key, whose name or target's name ends with id.

    >>> singer = Table("singer", (Column("Singer_ID", "INTEGER", primary_key=True), Column("age", "INTEGER")))
    >>> identifiers(Schema((singer,), "sqlite"))
    frozenset({('singer', 'singer_id')})
    """
    own = {
        (table.name.lower(), keys[0].name.lower())
        for table in schema.tables
        if len(keys := [column for column in table.columns if column.primary_key]) == 1
        and _IDENTIFIER.search(keys[0].name.lower())
    }
    refers = {here for here, there in _declared_pairs(schema) if _IDENTIFIER.search(here[1]) or there in own}
    return frozenset(own | refers)


def _declared_pairs(schema: Schema) -> Iterator[tuple[ColumnRef, ColumnRef]]:
    for edge in edges(schema):
        for here, there in zip(edge.columns, edge.ref_columns, strict=True):
            yield (edge.table.lower(), here.lower()), (edge.ref_table.lower(), there.lower())


def _groups(schema: Schema) -> Iterator[frozenset[ColumnRef]]:
    """Columns that hold the same key, because one refers to another or both to a third."""
    group_of: dict[ColumnRef, set[ColumnRef]] = {}
    for one, other in _references(schema):
        merged = group_of.get(one, {one}) | group_of.get(other, {other})
        group_of.update(dict.fromkeys(merged, merged))
    yield from {frozenset(group) for group in group_of.values()}


def _references(schema: Schema) -> Iterator[tuple[ColumnRef, ColumnRef]]:
    yield from _declared_pairs(schema)
    for table in schema.tables:
        for column in table.columns:
            for owner in schema.tables:
                key = _key_named(column, table, owner)
                if key is not None:
                    yield (table.name.lower(), column.name.lower()), (owner.name.lower(), key.name.lower())


def _key_named(column: Column, table: Table, owner: Table) -> Column | None:
    """The primary key of `owner` if `column` is named after it: `airline` or `home_airline_id` after airlines."""
    keys = [key for key in owner.columns if key.primary_key]
    if owner.name == table.name or len(keys) != 1 or not _comparable(column, keys[0]):
        return None
    subject = re.sub(r"_?(id|key|code|no)$", "", column.name.lower())
    name = owner.name.lower()
    named = any(subject == form or subject.endswith(f"_{form}") for form in {name, name.removesuffix("s")})
    return keys[0] if named else None


def _namesakes(schema: Schema) -> Iterator[tuple[str, str, str]]:
    for table in schema.tables:
        for column in table.columns:
            name = column.name.lower()
            for other in schema.tables:
                there = other.column(name) if other.name != table.name else None
                if (
                    there is not None
                    and _comparable(column, there)
                    and (_KEY.search(name) or _own_key(name, table, other))
                ):
                    yield table.name.lower(), other.name.lower(), name


def _own_key(name: str, *tables: Table) -> bool:
    """Whether one of the tables has this primary key; `id` and `name` are everywhere."""
    keys = [[column.name.lower() for column in table.columns if column.primary_key] for table in tables]
    return name not in ("id", "name") and [name] in keys


def _comparable(one: Column, other: Column) -> bool:
    kinds = type_kind(one.type), type_kind(other.type)
    return None in kinds or is_number(kinds[0]) == is_number(kinds[1])
