"""What a query sees while it is written: relations, sources, outputs, and what the SELECT list still needs from FROM.

Immutable. `SELECT T1.name, age FROM ...` names an alias and a column before their table is known: FROM owes both, and
every later choice leaves it a way to pay (`Catalog.payable`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

from agent.grammar.facts import Facts
from agent.grammar.words import FUNCTIONS, Function, WordSet
from tools.schema import ColumnRef, Schema

Phase = Literal["items", "from", "body"]
Nature = Literal["plain", "aggregate", "window"]
Owed = tuple[tuple[str, frozenset[str]], ...]
End = tuple[str, str]  # an alias, or nothing, and a column
# Gold queries of Spider and BIRD have at most 4 sub-queries inside each other, 7 sources in one FROM, 7 joints (AND,
# OR, operators) in one clause, not counting those in parentheses, and 3 in the condition of a join. One of 13,690 has a
# table more than 3 times in one FROM, and none has a comma or CROSS JOIN there.
MAX_DEPTH, MAX_SOURCES, MAX_JOINTS, MAX_ON_JOINTS = 4, 7, 8, 3
MAX_SELVES, MAX_PRODUCTS = 3, 1
LONG_FROM = 3  # sources; after them, the next one must supply what the SELECT list lacks


@dataclass(frozen=True, eq=False)
class Relation:
    """A table, a CTE or a subquery: its name, the names of its columns that have one, and its number of columns."""

    name: str
    spelled: tuple[str, ...]
    width: int

    @cached_property
    def columns(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self.spelled)

    @cached_property
    def key(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class FromItem:
    """A relation in FROM, and the name (lower case) that it has there."""

    alias: str
    relation: Relation


@dataclass(frozen=True, slots=True)
class Output:
    """One entry of the SELECT list. `name` is None if it has none; `star` is the source of `x.*`, or "*".

    Other clauses of the query may use its name only if AS gave it; enclosing queries may use any name.
    """

    name: str | None
    nature: Nature = "plain"
    star: str = ""
    alias: bool = False
    qualifier: str = ""
    column: str = ""  # the column, if the whole entry is one, as written after `qualifier`
    place: ColumnRef | None = None  # (table, column), if the table is known


@dataclass(frozen=True, eq=False, slots=True)
class Scope:
    """One query level. `parent` is the enclosing level as it was when this one was opened."""

    catalog: "Catalog"
    parent: "Scope | None" = None
    ctes: tuple[Relation, ...] = ()
    want: int | None = None  # how many outputs the query must have; None for any number
    phase: Phase = "items"
    outputs: tuple[Output, ...] = ()
    first: tuple[Output, ...] | None = None  # outputs of a compound's first arm
    sources: tuple[FromItem, ...] = ()
    comma: bool = False  # whether FROM has a comma; USING after a comma sees only some of the sources
    products: int = 0  # how many sources of FROM no condition joins with those before
    merged: tuple[str, ...] = ()  # columns of USING, one entry for each
    bare: frozenset[str] = frozenset()  # columns used without a qualifier before FROM was complete
    owed: Owed = ()  # qualifiers used before FROM named them, with the columns that they must have
    exact: int | None = None  # how many columns FROM must have, for SELECT * with `want` given
    column: str = ""  # the last column read
    qualifier: str = ""  # the qualifier before it
    place: ColumnRef | None = None  # the same as (table, column), if the table is known
    about: ColumnRef | None = None  # the column that a comparison begins with
    like: tuple[ColumnRef | None, ...] = ()  # the columns with which the entries of the SELECT list must be comparable
    joints: int = 0  # how often AND, OR or an operator joined parts of the clause, the entry, or these parentheses
    outside: tuple[int, ...] = ()  # the joints of each enclosing level of parentheses
    planned: frozenset[ColumnRef] = frozenset()  # columns that a plan names
    adding: bool = False  # directly inside SUM or AVG
    testing: bool = False  # in WHERE or HAVING, outside of functions
    timing: bool = False  # in the arguments of a function of dates
    operand: End | None = None  # the operand just read, if it is a column, or a function of dates of one
    timed: bool = False  # it is such a function
    written: str = ""  # how that function writes what is compared next, such as %y-%m, in lower case
    barred: End | None = None  # after `-` and `/`: the operand to come is an amount, and not this column
    nature: Nature = "plain"  # of the item being read
    aggregates: bool = True  # whether aggregate functions may stand here
    windows: bool = True
    within: bool = False  # inside an aggregate's arguments: no aliases, no outer columns
    aliases: frozenset[str] = frozenset()  # outputs whose names may be used here
    grouped: bool = False  # GROUP BY, or some aggregate in the SELECT list
    depth: int = 0
    parentheses: int = 0
    result: Relation | None = None  # the subquery that was closed last
    naming: str = ""  # the CTE that is being defined
    correlated: bool = True  # whether `parent`'s sources may be used here
    lending: bool = False  # a subquery in FROM, whose columns the SELECT list of `parent` may mean

    @property
    def relations(self) -> tuple[Relation, ...]:
        """What FROM may name."""
        hidden = {cte.key for cte in self.ctes}
        return (
            (*(table for table in self.catalog.tables if table.key not in hidden), *self.ctes)
            if hidden
            else self.catalog.tables
        )

    @property
    def unpaid(self) -> bool:
        """Whether FROM lacks something that the SELECT list uses."""
        have = {column for source in self.sources for column in source.relation.columns}
        return bool(self.owed) or not self.bare <= have or self.width_left not in (None, 0)

    @property
    def width_left(self) -> int | None:
        """How many columns FROM still lacks; None if any number will do."""
        return None if self.exact is None else self.exact - sum(source.relation.width for source in self.sources)

    def relation(self, key: str) -> Relation | None:
        return next((relation for relation in self.relations if relation.key == key), None)

    def source(self, alias: str) -> FromItem | None:
        return next((source for source in self.sources if source.alias == alias), None)

    def reading(self, qualifier: str, column: str) -> "Scope":
        """The scope with this as the last column read."""
        place = self.origin(qualifier, column) if self.catalog.facts else None
        return replace(self, column=column, qualifier=qualifier, place=place)

    def origin(self, qualifier: str, column: str) -> ColumnRef | None:
        """The table and column that a name means; None if it is not a table's column, or not decided yet."""
        if self.phase == "items":
            named = self.relation(qualifier) if qualifier else None
            owners = [named] if named else [one for one in self.relations if not qualifier and column in one.columns]
            return (owners[0].key, column) if len(owners) == 1 and self.catalog.has(owners[0]) else None
        for level in (self, *self.outer()):
            for source in level.sources:
                if source.alias == qualifier if qualifier else column in source.relation.columns:
                    return (source.relation.key, column) if self.catalog.has(source.relation) else None
        return None

    def outer(self) -> "Iterator[Scope]":
        """The enclosing levels whose sources are known, innermost first."""
        scope = self
        while scope.parent is not None:
            seen, scope = scope.correlated, scope.parent
            if seen and scope.phase != "items":
                yield scope

    def opened(self, want: int | None, correlated: bool = True, lending: bool = False) -> "Scope | None":
        """A new subquery inside this level; None if the nesting is too deep."""
        if self.depth >= MAX_DEPTH:
            return None
        deeper = self.depth + 1
        return Scope(self.catalog, self, self.ctes, want, depth=deeper, correlated=correlated, lending=lending)

    @property
    def awaited(self) -> frozenset[str]:
        """The columns that the enclosing SELECT list names without a table, if this is the first SELECT of a subquery in
        its FROM."""
        return self.parent.bare if self.parent and self.lending and self.first is None else frozenset()

    def may_lend(self, *names: str) -> bool:
        """Whether the outputs may have these names as well: each column that is `awaited` must keep a single owner."""
        known = {output.name for output in self.outputs}.union(names)
        lent = self.awaited.intersection(name for name in known if name)
        if not lent or self.parent is None:
            return True
        return _payable(self.parent.relations, (_lender(lent),), self.parent.bare, self.parent.owed)

    def payable(self) -> bool:
        """Whether FROM can still provide what the SELECT list uses."""
        relations = tuple(source.relation for source in self.sources)
        return payable(self.relations, relations, self.bare - set(self.merged), self.owed)

    def bound(self, relation: Relation, alias: str) -> "Scope | None":
        """The scope with one more source; None if that is not possible."""
        if alias and self.source(alias) is not None:
            return None
        debts = dict(self.owed)
        if not debts.pop(alias, frozenset()) <= relation.columns:
            return None
        scope = replace(
            self, sources=(*self.sources, FromItem(alias, relation)), owed=tuple(debts.items()), phase="from"
        )
        return scope if scope.payable() else None

    def owing(self, qualifier: str, column: str | None) -> "Scope | None":
        """The scope in which FROM also owes `qualifier`, with `column` if that is given; None if FROM could not pay."""
        debts = dict(self.owed)
        debts[qualifier] = debts.get(qualifier, frozenset()) | ({column} if column else frozenset())
        scope = replace(self, owed=tuple(sorted(debts.items(), key=lambda debt: debt[0])), column=column or "")
        return scope if scope.payable() else None

    def using(self, column: str) -> "Scope | None":
        """The scope after a column without a qualifier; None if FROM could not supply it."""
        if self.phase == "body" or column in self.bare:
            return replace(self, column=column)
        scope = replace(self, bare=self.bare | {column}, column=column)
        return scope if scope.payable() else None


@dataclass(frozen=True, eq=False)
class Catalog:
    """The part of the context that does not change while a statement is written."""

    tables: tuple[Relation, ...]
    dialect: str
    functions: dict[str, Function] = field(repr=False)
    facts: Facts | None = field(default=None, repr=False)
    products: bool = False  # whether a source may stand next to others though a known join leads to it

    def has(self, relation: Relation) -> bool:
        """Whether the relation is a table of the schema."""
        return any(relation is table for table in self.tables)

    @cached_property
    def spelling(self) -> dict[str, str]:
        """Maps each key to its spelling in the schema."""
        names = [name for table in self.tables for name in (table.name, *table.spelled)]
        return {name.lower(): name for name in reversed(names)}

    @cached_property
    def words(self) -> dict[frozenset[str], WordSet]:
        """The words of the sets of keys that were asked for, as the schema spells them: they go when the catalog goes."""
        return {}


def catalog_of(schema: Schema, dialect: str, facts: Facts | None = None, products: bool = False) -> Catalog:
    """The schema as relations. Tables qualified by a schema (`sales.orders`) keep their dotted name in quotes.

    `facts` limit joins and literals; without them every column may join every other.
    """
    return Catalog(relations_of(schema), dialect, FUNCTIONS[dialect], facts, products)


def relations_of(schema: Schema) -> tuple[Relation, ...]:
    """The tables, the same objects for equal names, so that what is cached by them serves one question after another."""
    return _relations(tuple((table.name, tuple(column.name for column in table.columns)) for table in schema.tables))


@lru_cache(maxsize=16)
def _relations(tables: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[Relation, ...]:
    return tuple(Relation(name, columns, len(columns)) for name, columns in tables)


def payable(offered: tuple[Relation, ...], sources: tuple[Relation, ...], bare: frozenset[str], owed: Owed) -> bool:
    """Whether sources can be added until every owed qualifier has its columns and every bare column one owner."""
    return not (bare or owed) or _payable(offered, sources, bare, owed)


@lru_cache(maxsize=16384)
def _payable(offered: tuple[Relation, ...], sources: tuple[Relation, ...], bare: frozenset[str], owed: Owed) -> bool:
    firm = [relation.columns & bare for relation in sources]
    covered = frozenset().union(*firm)
    if sum(map(len, firm)) > len(covered):
        return False
    return _search({relation.key: relation for relation in offered}, covered, bare - covered, list(owed))


@lru_cache(maxsize=1024)
def _lender(columns: frozenset[str]) -> Relation:
    """A source that has these columns."""
    return Relation("", tuple(sorted(columns)), len(columns))


def _search(
    offered: dict[str, Relation],
    covered: frozenset[str],
    missing: frozenset[str],
    owed: list[tuple[str, frozenset[str]]],
) -> bool:
    """Search depth first: assign the next owed qualifier, else the next missing column, to each relation that has it."""
    if owed:
        (qualifier, columns), *rest = owed
        named = offered.get(qualifier)
        able = [named] if named else list(offered.values())
        able = [relation for relation in able if columns <= relation.columns]
    elif missing:
        wanted, rest = min(missing), []
        able = [relation for relation in offered.values() if wanted in relation.columns]
    else:
        return True
    gains = {relation.columns & (missing | covered) for relation in able}
    return any(
        _search(offered, covered | gain, missing - gain, rest)
        for gain in sorted(gains, key=sorted)
        if not gain & covered
    )
