"""Which names a scope offers at each place of the grammar, as sets of keys (names in lower case)."""

from collections.abc import Iterator
from functools import lru_cache

from agent.grammar.scope import LONG_FROM, MAX_SELVES, End, FromItem, Owed, Relation, Scope, payable
from tools.schema import ColumnRef

_NEW = "\0"  # stands for a name that nobody uses
_NOTHING: frozenset[str] = frozenset()


def own_columns(scope: Scope) -> frozenset[str]:
    """Columns of this level that may be written without a qualifier."""
    if scope.phase == "items":
        return _affordable(scope.relations, scope.bare, scope.owed, "")
    single = _callable_alone(scope.sources, scope.merged)
    if scope.phase == "body":
        return single
    if scope.exact is not None:
        return _NOTHING  # a column without a qualifier could rule out the only table that brings FROM to its width
    return frozenset(column for column in single if scope.using(column) is not None)


def ambiguous(scope: Scope) -> frozenset[str]:
    """Columns of several sources of this level, which may not be written without a qualifier."""
    return _all_columns(scope.sources) - _callable_alone(scope.sources, scope.merged)


def outer_columns(scope: Scope) -> frozenset[str]:
    """Columns of the enclosing levels that may be written here without a qualifier."""
    if scope.phase == "items" or scope.within:
        return _NOTHING
    found: set[str] = set()
    hidden = _all_columns(scope.sources)
    for level in scope.outer():
        found |= _single(tuple(source.relation for source in level.sources)) - hidden
        hidden |= _all_columns(level.sources)
    return frozenset(found)


def qualifiers(scope: Scope) -> frozenset[str]:
    """Known names that may come before a dot, and have at least one column to follow it.

    Before FROM, a qualifier belongs to this level, even if an enclosing level has one of that name.
    """
    if scope.phase == "items":
        return _with_sense(scope, _nameable(scope.relations, scope.bare, scope.owed))
    levels = (scope,) if scope.within else (scope, *scope.outer())
    sources = (source for level in levels for source in level.sources)
    return _with_sense(scope, frozenset(one.alias for one in sources if one.alias and one.relation.columns))


def _with_sense(scope: Scope, names: frozenset[str]) -> frozenset[str]:
    """Inside SUM, AVG and functions of dates, and after `-` and `/`: the qualifiers with a column that makes sense there, or
    all if there is none.
    """
    facts = scope.catalog.facts
    if facts is None or not (scope.adding or scope.timing or scope.barred):
        return names
    able = (name for name in names if any(_makes_sense(scope, name, column) for column in columns_of(scope, name)))
    return frozenset(able) or names


def columns_of(scope: Scope, qualifier: str) -> frozenset[str]:
    """Columns that may follow `qualifier.`."""
    if scope.phase == "items":
        return _affordable(scope.relations, scope.bare, scope.owed, qualifier)
    sources = (level.source(qualifier) for level in (scope, *scope.outer()))
    return next((source.relation.columns for source in sources if source is not None), _NOTHING)


def new_qualifier_possible(scope: Scope) -> bool:
    """Whether FROM could provide one more alias."""
    return scope.phase == "items" and scope.owing(_NEW, None) is not None


def tables(scope: Scope) -> frozenset[str]:
    """Relations that FROM may name next: those that join with its sources, or any that fit if none of them does.

    A small model that wants to go on to WHERE, but may not yet, would join the same tables again without end. So if FROM is
    long and the SELECT list still lacks something, the next relation must supply it or, as far as joins are known, lead to it.
    """
    here = [source.relation for source in scope.sources]
    able = [relation for relation in fitting(scope) if _placeable(scope, relation)]
    if scope.catalog.facts:
        able = [relation for relation in able if here.count(relation) < MAX_SELVES or _pays(scope, relation)]
    near = [relation for relation in able if _joins_on(scope, relation)]
    ways = [near, able]
    if is_overdue(scope):
        paying_near, paying = ([relation for relation in way if _pays(scope, relation)] for way in ways)
        ways = [paying_near, [relation for relation in near if relation not in here], paying, *ways]
    return frozenset(relation.key for relation in next(filter(None, ways), ()))


def is_overdue(scope: Scope, long: int = LONG_FROM) -> bool:
    """Whether FROM has `long` sources, and the SELECT list still lacks something."""
    return scope.catalog.facts is not None and len(scope.sources) >= long and scope.unpaid


def _pays(scope: Scope, relation: Relation) -> bool:
    """Whether the relation supplies what the SELECT list lacks: its name, the columns of an owed alias, or a bare column."""
    missing = scope.bare - _all_columns(scope.sources)
    owed = (columns for name, columns in scope.owed if name == relation.key or scope.relation(name) is None)
    return any(columns <= relation.columns for columns in owed) or bool(relation.columns & missing)


def _joins_on(scope: Scope, relation: Relation) -> bool:
    """Whether a known join leads from the sources so far to the relation, or joins are not limited here."""
    facts, here = scope.catalog.facts, [source.relation for source in scope.sources]
    known = bool(here) and all(map(scope.catalog.has, [relation, *here]))
    if facts is None or not known or scope.comma or scope.exact is not None:
        return True
    return facts.joins.adjoins(frozenset(one.key for one in here), relation.key)


def joins_further(scope: Scope) -> bool:
    """Whether a known join leads from a source to some other table."""
    facts, here = scope.catalog.facts, frozenset(source.relation.key for source in scope.sources)
    others = [table.key for table in scope.catalog.tables]
    return facts is not None and any(
        facts.joins.between(one, other) for one in here for other in others if other != one
    )


def join_ends(scope: Scope) -> dict[End, frozenset[End]]:
    """Which columns the last source's join may equate, from either side; empty if that is not known."""
    facts, ends = scope.catalog.facts, dict[End, set[End]]()
    *before, last = scope.sources
    for source in before if facts is not None and scope.catalog.has(last.relation) else ():
        if facts is not None and scope.catalog.has(source.relation):
            for here, there in facts.pairs(source.relation.key, last.relation.key):
                ends.setdefault((source.alias, here), set()).add((last.alias, there))
                ends.setdefault((last.alias, there), set()).add((source.alias, here))
    return {end: frozenset(others) for end, others in ends.items()}


def entry_columns(scope: Scope, qualifier: str = "") -> frozenset[str]:
    """Columns that may be an entry of the SELECT list: none twice, and comparable with what the enclosing query compares."""
    found = columns_of(scope, qualifier) if qualifier else own_columns(scope)
    facts, number = scope.catalog.facts, len(scope.outputs) - 1
    if facts is None:
        return found
    twice = {output.column for output in scope.outputs if output.name and output.qualifier == qualifier}
    wanted = scope.like[number] if number < len(scope.like) else None
    alike = found & facts.joins.alike(wanted) if wanted else found
    return (alike or found) - twice or found


def useful_columns(scope: Scope, qualifier: str) -> frozenset[str]:
    """The columns of `qualifier` that are `useful`."""
    return useful(scope, columns_of(scope, qualifier), qualifier)


def useful(scope: Scope, found: frozenset[str], qualifier: str = "") -> frozenset[str]:
    """The columns of `found` that make sense here, or all if none does: inside SUM and AVG, only those that can be added up;
    in functions of dates, those that hold some; in WHERE and HAVING, those that may be tested; after `x -`, amounts but not x.
    """
    if scope.catalog.facts is None:
        return found
    if scope.barred and scope.barred[0] == qualifier:
        found = found - {scope.barred[1]} or found
    if not (scope.adding or scope.testing or scope.timing or scope.barred):
        return found
    return frozenset(column for column in found if _makes_sense(scope, qualifier, column)) or found


def _makes_sense(scope: Scope, qualifier: str, column: str) -> bool:
    """Whether a column may stand where something is added up, dated, or tested. All are allowed for one of which nothing is
    known.
    """
    facts, refs = scope.catalog.facts, _meanings(scope, qualifier, column)
    if facts is None or not refs:
        return True
    amounts = scope.adding or scope.barred
    sense = facts.may_date if scope.timing else facts.may_sum if amounts else facts.may_test
    return any(map(sense, refs))


def _meanings(scope: Scope, qualifier: str, column: str) -> list[ColumnRef]:
    """The columns that a name may mean; none if one of them is not a table's. Before FROM, a bare name may have many."""
    place = scope.origin(qualifier, column)
    if place is not None or qualifier or scope.phase != "items":
        return [place] if place else []
    owners = [relation for relation in scope.relations if column in relation.columns]
    return [(owner.key, column) for owner in owners] if all(map(scope.catalog.has, owners)) else []


def fitting(scope: Scope) -> Iterator[Relation]:
    """Relations after which FROM can still get the width that it must have."""
    left = scope.width_left
    widths = frozenset(relation.width for relation in scope.relations)
    return (one for one in scope.relations if left is None or _sums(left - one.width, widths))


@lru_cache(maxsize=4096)
def _sums(total: int, parts: frozenset[int]) -> bool:
    """Whether some of the parts, each used any number of times, add up to `total`."""
    return total == 0 or any(_sums(total - part, parts) for part in parts if 0 < part <= total)


def owed_aliases(scope: Scope, relation: Relation) -> frozenset[str]:
    """Owed aliases that `relation` can take on."""
    names = {name for name, _ in scope.owed if scope.relation(name) is None}
    return frozenset(name for name in names if scope.bound(relation, name) is not None)


def other_alias_possible(scope: Scope, relation: Relation) -> bool:
    """Whether `relation` may have an alias that is not owed."""
    return scope.bound(relation, _NEW) is not None


def shared_columns(scope: Scope) -> frozenset[str]:
    """Columns for USING: of the last source and of exactly one before it."""
    *before, last = scope.sources
    return _callable_alone(tuple(before), scope.merged) & last.relation.columns


def positions(scope: Scope) -> frozenset[str]:
    """Numbers of outputs for ORDER BY and GROUP BY."""
    usable = (number for number, output in enumerate(scope.outputs, 1) if scope.aggregates or output.nature == "plain")
    return frozenset(map(str, usable))


def _placeable(scope: Scope, relation: Relation) -> bool:
    if scope.bound(relation, relation.key) is not None:
        return True
    owed_itself = any(name == relation.key for name, _ in scope.owed)
    return not owed_itself and (other_alias_possible(scope, relation) or bool(owed_aliases(scope, relation)))


def _all_columns(sources: tuple[FromItem, ...]) -> frozenset[str]:
    return _NOTHING.union(*(source.relation.columns for source in sources))


def _callable_alone(sources: tuple[FromItem, ...], merged: tuple[str, ...]) -> frozenset[str]:
    """Columns of exactly one source, or merged into one by USING."""
    relations = tuple(source.relation for source in sources)
    owners = {column: sum(column in relation.columns for relation in relations) for column in merged}
    return _single(relations) | {column for column, count in owners.items() if count == 1 + merged.count(column)}


@lru_cache(maxsize=4096)
def _single(relations: tuple[Relation, ...]) -> frozenset[str]:
    """Columns that exactly one of the relations has."""
    once: set[str] = set()
    twice: set[str] = set()
    for relation in relations:
        twice |= once & relation.columns
        once |= relation.columns
    return frozenset(once - twice)


@lru_cache(maxsize=4096)
def _affordable(offered: tuple[Relation, ...], bare: frozenset[str], owed: Owed, qualifier: str) -> frozenset[str]:
    """Columns that the SELECT list may use before FROM: after `qualifier`, or without one if it is empty."""
    every = _NOTHING.union(*(relation.columns for relation in offered))
    if qualifier:
        named = next((relation for relation in offered if relation.key == qualifier), None)
        debts = dict(owed)
        before = debts.get(qualifier, _NOTHING)
        every = named.columns if named else every
        fits = {c: payable(offered, (), bare, _with(debts, qualifier, before | {c})) for c in every}
    else:
        fits = {c: c in bare or payable(offered, (), bare | {c}, owed) for c in every}
    return frozenset(column for column, fit in fits.items() if fit)


@lru_cache(maxsize=4096)
def _nameable(offered: tuple[Relation, ...], bare: frozenset[str], owed: Owed) -> frozenset[str]:
    """Qualifiers for the SELECT list: those already owed, and relations that FROM can name."""
    debts = dict(owed)
    able = (relation.key for relation in offered if relation.columns)
    return frozenset(debts) | {
        key for key in able if key in debts or payable(offered, (), bare, _with(debts, key, _NOTHING))
    }


def _with(debts: dict[str, frozenset[str]], qualifier: str, columns: frozenset[str]) -> Owed:
    return tuple(sorted((debts | {qualifier: columns}).items(), key=lambda debt: debt[0]))
