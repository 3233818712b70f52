"""How tables are connected: foreign keys as an undirected graph, shortest paths in it, and which columns a join may equate.

Those are more than the graph shows to the model, because a constraint must not be too strict: declared keys and keys guessed
from names, columns that refer to the same key, and columns of the same name that looks like a key's. Two tables of which
nothing is known are not constrained. Names are in lower case.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from sqlglot import exp

from tools.schema import Column, ColumnRef, Schema, Table, derived
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


class JoinGraph(tuple[Edge, ...]):
    """Edges, and those of each table."""

    @cached_property
    def touching(self) -> dict[str, list[Edge]]:
        """The edges at each table."""
        found: dict[str, list[Edge]] = defaultdict(list)
        for edge in self:
            for table in {edge.table, edge.ref_table}:
                found[table].append(edge)
        return found


@derived
def edges(schema: Schema) -> JoinGraph:
    """Every foreign key whose tables exist; if the database declares none at all, keys guessed from column names."""
    return JoinGraph(dict.fromkeys(_declared(schema))) or JoinGraph(dict.fromkeys(_guessed(schema)))


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


def shortest_paths(graph: JoinGraph, start: Iterable[str], goal: str) -> list[tuple[Edge, ...]]:
    """The shortest paths from any of the `start` tables to `goal`: none, the only one, or two of several."""
    level: dict[str, list[tuple[Edge, ...]]] = {table: [()] for table in start}
    reached = set(level)
    while level and goal not in level:
        following: dict[str, list[tuple[Edge, ...]]] = defaultdict(list)
        for table, paths in level.items():
            for edge in graph.touching.get(table, ()):
                there = edge.other(table)
                if there not in reached:
                    following[there] = (following[there] + [(*path, edge) for path in paths])[:2]
        level = following
        reached |= set(level)
    return level.get(goal, [])


def connect(graph: JoinGraph, tables: Sequence[str]) -> tuple[Edge, ...] | None:
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
_NO_AMOUNT = re.compile(r"\bidentifier\b|\bnot an? (?:count|amount|quantity|measure|number of)\b", re.IGNORECASE)
_IDENTIFIER = re.compile(r"(^|_|[a-z])id$")


@dataclass(frozen=True, eq=False)
class Joinable:
    """Which columns joins may equate, looked up table by table: ten thousand tables with a common key have 100 million pairs.

    `columns`: of each table, by name. `groups`: the columns that hold the same key, by each of them. `owned`: the columns that
    are their table's own key, and not merely called `id`. `holders`: the tables that have a column of that name.
    """

    columns: Mapping[str, Mapping[str, Column]]
    groups: Mapping[ColumnRef, frozenset[ColumnRef]]
    owned: frozenset[ColumnRef]
    holders: Mapping[str, Sequence[str]]
    _found: dict[tuple[str, str], frozenset[tuple[str, str]]] = field(default_factory=dict, repr=False)
    _neighbours: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)

    def between(self, one: str, other: str) -> frozenset[tuple[str, str]]:
        """The (column of one, column of other) that may be equated; empty if nothing is known."""
        if (one, other) not in self._found:
            self._found[one, other] = frozenset(self._pairs(one, other))
        return self._found[one, other]

    def alike(self, place: ColumnRef) -> frozenset[str]:
        """Names of the columns, in any table, that hold the same values as this column, its own included."""
        table, column = place
        return frozenset({column, *(name for other, name in self.groups.get(place, ()) if other != table)})

    def adjoins(self, here: frozenset[str], table: str) -> bool:
        """Whether FROM may continue from the tables `here` to this one: they join directly, or nothing connects them."""
        return any(self.between(one, table) for one in here) or not self._connected.get(table, frozenset()) & here

    def neighbours(self, table: str) -> frozenset[str]:
        """The tables that this table joins with."""
        if table not in self._neighbours:
            near = {other for name in self.columns[table] for other, _ in self.groups.get((table, name), ())}
            for name in self.columns[table]:
                near |= {other for other in self.holders[name] if other not in near and self._share(table, other, name)}
            self._neighbours[table] = frozenset(near - {table})
        return self._neighbours[table]

    @cached_property
    def _connected(self) -> Mapping[str, frozenset[str]]:
        """For each table, all that it is connected with by joins, itself included."""
        found: dict[str, frozenset[str]] = {}
        for start in self.columns:
            if start not in found:
                group, edge = {start}, {start}
                while edge:
                    edge = {other for one in edge for other in self.neighbours(one)} - group
                    group |= edge
                found |= dict.fromkeys(group, frozenset(group))
        return found

    def _pairs(self, one: str, other: str) -> Iterator[tuple[str, str]]:
        there = self.columns.get(other, {})
        for name in self.columns.get(one, {}):
            yield from ((name, each) for table, each in self.groups.get((one, name), ()) if table == other)
            if name in there and (one == other or self._share(one, other, name)):
                yield name, name

    def _share(self, one: str, other: str, name: str) -> bool:
        """Whether both tables have this column, and it is a key by its name or in one of them."""
        is_key = _KEY.search(name) is not None or not self.owned.isdisjoint(((one, name), (other, name)))
        return is_key and _comparable(self.columns[one][name], self.columns[other][name])


@derived
def joinable(schema: Schema) -> Joinable:
    """The columns that joins of this schema may equate."""
    columns = {table.name.lower(): {each.name.lower(): each for each in table.columns} for table in schema.tables}
    holders: dict[str, list[str]] = defaultdict(list)
    for table, own in columns.items():
        for name in own:
            holders[name].append(table)
    keys = (
        (table.name.lower(), [each.name.lower() for each in table.columns if each.primary_key])
        for table in schema.tables
    )
    owned = frozenset((table, names[0]) for table, names in keys if len(names) == 1 and names[0] not in ("id", "name"))
    return Joinable(columns, _groups(schema), owned, holders)


@derived
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
    return frozenset(own | refers | described_as_identifiers(schema))


@derived
def described_as_identifiers(schema: Schema) -> frozenset[ColumnRef]:
    """Columns of whose numbers a description says that they count nothing: "flight number, not a count"."""
    columns = ((table, column) for table in schema.tables for column in table.columns if column.comment)
    return frozenset((t.name.lower(), c.name.lower()) for t, c in columns if _NO_AMOUNT.search(c.comment))


def _declared_pairs(schema: Schema) -> Iterator[tuple[ColumnRef, ColumnRef]]:
    for edge in edges(schema):
        for here, there in zip(edge.columns, edge.ref_columns, strict=True):
            yield (edge.table.lower(), here.lower()), (edge.ref_table.lower(), there.lower())


def _groups(schema: Schema) -> dict[ColumnRef, frozenset[ColumnRef]]:
    """Columns that hold the same key, because one refers to another or both to a third."""
    touching: dict[ColumnRef, set[ColumnRef]] = defaultdict(set)
    for one, other in _references(schema):
        touching[one].add(other)
        touching[other].add(one)
    group_of: dict[ColumnRef, frozenset[ColumnRef]] = {}
    for start in touching:
        if start not in group_of:
            group, edge = {start}, {start}
            while edge:
                edge = {other for one in edge for other in touching[one]} - group
                group |= edge
            group_of |= dict.fromkeys(group, frozenset(group))
    return group_of


def _references(schema: Schema) -> Iterator[tuple[ColumnRef, ColumnRef]]:
    yield from _declared_pairs(schema)
    keyed = _single_keys(schema)
    for table in schema.tables:
        for column in table.columns:
            for owner, key in _named_after(column, keyed):
                if owner.name != table.name and _comparable(column, key):
                    yield (table.name.lower(), column.name.lower()), (owner.name.lower(), key.name.lower())


def _single_keys(schema: Schema) -> dict[str, list[tuple[Table, Column]]]:
    """The tables that have one primary key, with it, by their names and by these without a last s."""
    found: dict[str, list[tuple[Table, Column]]] = defaultdict(list)
    for owner in schema.tables:
        keys = [column for column in owner.columns if column.primary_key]
        for name in dict.fromkeys((owner.name.lower(), owner.name.lower().removesuffix("s"))) if len(keys) == 1 else ():
            found[name].append((owner, keys[0]))
    return found


def _named_after(column: Column, keyed: Mapping[str, list[tuple[Table, Column]]]) -> list[tuple[Table, Column]]:
    """The tables and keys that the column is named after: `airline` or `home_airline_id` after airlines."""
    return [each for ending in _subjects(column.name) for each in keyed.get(ending, ())]


@lru_cache(maxsize=65_536)
def _subjects(name: str) -> tuple[str, ...]:
    subject = re.sub(r"_?(id|key|code|no)$", "", name.lower())
    return subject, *(subject[place + 1 :] for place, letter in enumerate(subject) if letter == "_")


def _comparable(one: Column, other: Column) -> bool:
    kinds = type_kind(one.type), type_kind(other.type)
    return None in kinds or is_number(kinds[0]) == is_number(kinds[1])
