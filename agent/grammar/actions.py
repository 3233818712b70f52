"""The {actions} of the grammar: how a scope changes between words, and the choices that depend on facts.

An action returns the changed scope, or None if the grammar cannot go on this way. Those of FROM decide which source may come
next and how it is joined. The choices that depend on facts are what a join may equate, and what a column may be compared with.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from agent.grammar import visible_names
from agent.grammar.facts import Facts, literal_set
from agent.grammar.notation import (
    MAX_PARENTHESES,
    Action,
    Choice,
    Fixed,
    Names,
    Number,
    Rule,
    Step,
    String,
    Symbol,
    named,
)
from agent.grammar.scope import (
    MAX_DEPTH,
    MAX_JOINTS,
    MAX_ON_JOINTS,
    MAX_PRODUCTS,
    MAX_SOURCES,
    End,
    Nature,
    Output,
    Relation,
    Scope,
)
from agent.grammar.visible_names import ambiguous, fitting, join_ends, joins_further, shared_columns, tables
from agent.grammar.words import WordSet
from tools.schema import ColumnRef


def unbound(scope: Scope) -> Scope | None:
    """Allow a join without a condition only if no condition is known."""
    return None if join_ends(scope) else product(scope)


def product(scope: Scope) -> Scope | None:
    """Go on to a source that no condition joins. Where joins are known, only if none leads on from FROM, and at most
    `MAX_PRODUCTS` times, unless the catalog permits `products`.
    """
    known = scope.catalog.facts is not None and not scope.catalog.products
    full = known and (scope.products >= MAX_PRODUCTS or joins_further(scope))
    return None if full else replace(scope, products=scope.products + 1)


def join(scope: Scope) -> Scope | None:
    """Require that FROM may have one more source: below `MAX_SOURCES`, or while the SELECT list still lacks something."""
    if len(scope.sources) >= MAX_SOURCES and not scope.unpaid:
        return None
    subquery = scope.exact is None and scope.depth < MAX_DEPTH and not scope.bare
    return scope if subquery or tables(scope) else None


def sharing(scope: Scope) -> Scope | None:
    """Require that USING has a column to name."""
    return scope if shared_columns(scope) and not scope.comma else None


def comma(scope: Scope) -> Scope | None:
    """Continue FROM after a comma."""
    return replace(scope, comma=True)


def on(scope: Scope) -> Scope | None:
    """Begin the condition of a join."""
    return replace(scope, aggregates=False, windows=False, joints=MAX_JOINTS - MAX_ON_JOINTS)


_NONE: frozenset[str] = frozenset()


def one_column(scope: Scope) -> Scope | None:
    """Open a subquery that returns one column."""
    return scope.opened(1)


def member_query(scope: Scope) -> Scope | None:
    """Open a subquery after IN, whose column must hold the same kind of values as the column before IN."""
    opened = scope.opened(1)
    return replace(opened, like=(scope.about,)) if opened else None


def any_query(scope: Scope) -> Scope | None:
    """Open a subquery of any width."""
    return scope.opened(None)


def from_query(scope: Scope) -> Scope | None:
    """Open a subquery in FROM, which does not see the other sources. Beside another source its columns could make those that
    were named without a table ambiguous.
    """
    possible = scope.exact is None and not (scope.bare and scope.sources)
    return scope.opened(None, correlated=False, lending=True) if possible else None


def cte_query(scope: Scope) -> Scope | None:
    """Open the query of a CTE."""
    return scope.opened(None, correlated=False)


def deeper(scope: Scope) -> Scope | None:
    """Require room for one more query level."""
    return scope if scope.depth < MAX_DEPTH else None


def close(scope: Scope) -> Scope | None:
    """End a subquery: return to the enclosing level, which gets it as `result`."""
    outputs, spelling = scope.first or scope.outputs, scope.catalog.spelling
    spelled = tuple(dict.fromkeys(spelling.get(output.name, output.name) for output in outputs if output.name))
    return replace(scope.parent, result=Relation("", spelled, len(outputs))) if scope.parent else None


def bind_cte(scope: Scope) -> Scope | None:
    """Make the query just closed a relation."""
    if scope.result is None:
        return None
    cte = replace(scope.result, name=scope.naming)
    return replace(scope, ctes=(*scope.ctes, cte), result=None)


def arm(scope: Scope) -> Scope | None:
    """Begin a SELECT."""
    return replace(scope, phase="items", aggregates=True, windows=True, aliases=_NONE)


def compound(scope: Scope) -> Scope | None:
    """After UNION: begin another SELECT of the same width."""
    first = scope.first or scope.outputs
    fresh = Scope(scope.catalog, scope.parent, scope.ctes, len(first), depth=scope.depth, correlated=scope.correlated)
    return replace(fresh, first=first)


def alike(scope: Scope) -> Scope | None:
    """After INTERSECT or EXCEPT: begin a SELECT whose columns hold the same kinds of values as those of the first."""
    after = compound(scope)
    return replace(after, like=tuple(output.place for output in after.first or ())) if after else None


def item(scope: Scope) -> Scope | None:
    """Begin an entry of the SELECT list."""
    return replace(scope, nature="plain", outputs=(*scope.outputs, Output(None)), joints=0)


def another(scope: Scope) -> Scope | None:
    """Require that the SELECT list may have another entry."""
    full = scope.want is not None and len(scope.outputs) >= scope.want
    full = full or bool(scope.awaited and scope.outputs[0].star)
    return None if full or scope.exact is not None else _settled(scope)


def listed(scope: Scope) -> Scope | None:
    """End the SELECT list."""
    short = scope.want is not None and scope.exact is None and len(scope.outputs) != scope.want
    return None if short else _settled(scope)


def _settled(scope: Scope) -> Scope:
    """Store with the last entry of the SELECT list whether it is plain, an aggregate or a window."""
    last = scope.outputs[-1]
    return replace(scope, outputs=(*scope.outputs[:-1], replace(last, nature=scope.nature)))


def name_column(scope: Scope) -> Scope | None:
    """Name an entry that is a single column after the column."""
    if not scope.may_lend(scope.column):
        return None
    whole = replace(
        scope.outputs[-1], name=scope.column, qualifier=scope.qualifier, column=scope.column, place=scope.place
    )
    return replace(scope, outputs=(*scope.outputs[:-1], whole))


def star(scope: Scope) -> Scope | None:
    """Take `*` as an entry. If the width is given, the star must be the only entry, and FROM must have that width. Where
    the enclosing SELECT list awaits columns, FROM must have them, and the star must be the only entry too.
    """
    starred = replace(scope, outputs=(*scope.outputs[:-1], Output(None, star="*")), exact=scope.want)
    alone = len(scope.outputs) == 1
    if scope.awaited:
        lent = replace(starred, bare=scope.awaited, exact=None)
        return lent if alone and scope.may_lend(*scope.awaited) and lent.payable() else None
    fits = scope.want is None or (alone and any(fitting(starred)))
    return starred if fits else None


def no_from(scope: Scope) -> Scope | None:
    """End a SELECT without FROM, which must not name any column or source."""
    names_something = scope.bare or scope.owed or any(output.star for output in scope.outputs)
    return None if names_something else _complete(scope)


def about(scope: Scope) -> Scope | None:
    """Remember this column, so that a comparison that follows it offers the literals that fit it."""
    operand = (scope.qualifier, scope.column)
    return replace(scope, about=scope.place, operand=operand, timed=False, written="", barred=None)


def silent(scope: Scope) -> Scope | None:
    """Forget the column: what comes before the comparison is not a column alone. A function of dates just read stays known."""
    if not (scope.about or scope.operand or scope.barred or scope.written):
        return scope
    operand, written = (scope.operand, scope.written) if scope.timed else (None, "")
    return replace(scope, about=None, operand=operand, timed=False, written=written, barred=None)


def apart(scope: Scope) -> Scope | None:
    """Go on to an operand of `-` or `/`: an amount that differs from the operand before, for nobody asks for x - x or x / x."""
    return replace(scope, barred=scope.operand or ("", ""))


def dated(scope: Scope) -> Scope | None:
    """Require that some column holds dates that functions of dates can read."""
    facts = scope.catalog.facts
    return scope if facts is not None and facts.readable else None


def measured(scope: Scope) -> Scope | None:
    """Require that the column before has an order that means something."""
    facts = scope.catalog.facts
    return scope if facts is None or facts.may_measure(scope.about) else None


def further(scope: Scope) -> Scope | None:
    """Require that the clause, or the entry of the SELECT list, may have one more condition or term."""
    return replace(scope, joints=scope.joints + 1) if scope.joints < MAX_JOINTS else None


def joined(scope: Scope) -> Scope | None:
    """End FROM: the SELECT list must lack nothing any more, and its stars are expanded."""
    return None if scope.unpaid else _complete(replace(scope, outputs=tuple(_expanded(scope))))


def _complete(scope: Scope) -> Scope:
    grouped = any(output.nature == "aggregate" for output in scope.outputs)
    return replace(scope, phase="body", aggregates=False, windows=False, grouped=grouped)


def _expanded(scope: Scope) -> Iterable[Output]:
    for output in scope.outputs:
        if not output.star:
            known = output.column and scope.catalog.facts
            yield replace(output, place=scope.origin(output.qualifier, output.column)) if known else output
            continue
        for source in scope.sources:
            if output.star in ("*", source.alias):
                named = [Output(name.lower()) for name in source.relation.spelled]
                yield from named + [Output(None)] * (source.relation.width - len(named))


def where(scope: Scope) -> Scope | None:
    """Begin WHERE, which takes no aggregates and no alias of one."""
    return replace(scope, aliases=_sole_aliases(scope, "plain"), joints=0, testing=True)


def group(scope: Scope) -> Scope | None:
    """Begin the keys of GROUP BY."""
    return replace(scope, aggregates=False, aliases=_sole_aliases(scope, "plain"), joints=0, testing=False)


def grouped(scope: Scope) -> Scope | None:
    """End the keys of GROUP BY."""
    return replace(scope, grouped=True)


def having(scope: Scope) -> Scope | None:
    """Begin HAVING, which takes aggregates and their aliases."""
    return replace(scope, aggregates=True, aliases=_sole_aliases(scope, "plain", "aggregate"), joints=0, testing=True)


def order(scope: Scope) -> Scope | None:
    """Begin ORDER BY, which takes aggregates only if the query aggregates."""
    aliases = _aliases(scope, "plain", "aggregate", "window")
    return replace(scope, aggregates=scope.grouped, windows=True, aliases=aliases, joints=0, testing=False)


def room(scope: Scope) -> Scope | None:
    """Go on with a list; a long statement does not."""
    return scope


def enter(scope: Scope) -> Scope | None:
    """Enter parentheses, if they are not nested too deeply."""
    if scope.parentheses >= MAX_PARENTHESES:
        return None
    outside = (*scope.outside, scope.joints)
    return replace(scope, parentheses=scope.parentheses + 1, adding=False, joints=0, outside=outside, barred=None)


def leave(scope: Scope) -> Scope | None:
    """Leave parentheses."""
    *outside, joints = scope.outside
    return replace(scope, parentheses=scope.parentheses - 1, joints=joints, outside=tuple(outside))


def _aliases(scope: Scope, *natures: Nature) -> frozenset[str]:
    return frozenset(
        output.name for output in scope.outputs if output.name and output.alias and output.nature in natures
    )


def _sole_aliases(scope: Scope, *natures: Nature) -> frozenset[str]:
    """Without those that several sources have a column for: before ORDER BY, a name means a column first."""
    return _aliases(scope, *natures) - ambiguous(scope)


def never(scope: Scope) -> Scope | None:
    """What a long statement does not begin."""
    return None


def same(scope: Scope) -> Scope | None:
    """What changes nothing."""
    return scope


def _uncompared(scope: Scope) -> Scope | None:
    return None if scope.parentheses else scope


def _needed_join(scope: Scope) -> Scope | None:
    return join(scope) if scope.unpaid and tables(scope) else None


def _needed_entry(scope: Scope) -> Scope | None:
    return another(scope) if scope.want is not None and len(scope.outputs) < scope.want else None


_VERBS: tuple[Callable[[Scope], Scope | None], ...] = (
    close, cte_query, bind_cte, arm, compound, alike, item, listed, name_column, star, no_from, about, silent, measured,
    apart, dated,
    unbound, product, comma, sharing, on, joined, group, grouped, leave,
)  # fmt: skip
_GROWING: tuple[Callable[[Scope], Scope | None], ...] = (
    one_column, member_query, any_query, deeper, further, where, having, order, enter, room,
)  # fmt: skip
ACTIONS: dict[str, Symbol] = {
    **{verb.__name__: Action(verb) for verb in _VERBS},
    **{verb.__name__: Action(verb, landing=never) for verb in _GROWING},
    "another": Action(another, landing=_needed_entry),
    "join": Action(join, landing=_needed_join),
    "from_query": Action(from_query, landing=never, early=True),
    "brief": Action(never, landing=same),
    "compared": Action(same, landing=_uncompared),
}


def _join_on(scope: Scope) -> list[tuple[Symbol, ...]]:
    """The condition of a join: two columns that are known to join, and further conditions; any condition if none are known.

    One side may be cast: in some databases two keys that join have different types, which DuckDB does not compare.
    """
    ends = visible_names.join_ends(scope)
    if not ends:
        return [(Rule("expr"),)]

    def other(end: End) -> tuple[Symbol, ...]:
        others = ends[end]
        return Fixed("="), Choice(lambda now: [_cast(others, _nothing), *_ends(others, _nothing)])

    def other_plain(end: End) -> tuple[Symbol, ...]:
        return Fixed("="), Choice(lambda now: _ends(ends[end], _nothing))

    ways = (*_ends(frozenset(ends), other), _cast(frozenset(ends), other_plain))
    return [(ACTIONS["product"], Fixed("true")), *((*way, Rule("more_conditions")) for way in ways)]


def _cast(ends: frozenset[End], then: Callable[[End], tuple[Symbol, ...]]) -> tuple[Symbol, ...]:
    """One of these columns, cast to some type, followed by what `then` gives for it."""
    closing = (Fixed("as"), Rule("type"), Fixed(")"), ACTIONS["leave"])
    opening = (ACTIONS["enter"], Fixed("cast"), Fixed("("))
    return (*opening, Choice(lambda now: _ends(ends, lambda end: (*closing, *then(end)))))


def _nothing(end: End) -> tuple[Symbol, ...]:
    return ()


def _ends(ends: frozenset[End], then: Callable[[End], tuple[Symbol, ...]]) -> list[tuple[Symbol, ...]]:
    """One of these columns, with or without its qualifier, followed by what `then` gives for it."""

    def columns(scope: Scope, alias: str) -> frozenset[str]:
        return frozenset(column for name, column in ends if name == alias)

    def bare(scope: Scope) -> frozenset[str]:
        return frozenset(column for _, column in ends) & visible_names.own_columns(scope)

    def accept_qualified(scope: Scope, alias: str) -> Step | None:
        def accept(now: Scope, column: str) -> Step | None:
            return then((alias, column)), now.reading(alias, column)

        return (Fixed("."), Names(named(lambda now: columns(now, alias)), accept)), scope

    def accept_bare(scope: Scope, column: str) -> Step | None:
        used = scope.using(column)
        end = next(end for end in sorted(ends) if end[1] == column)
        return None if used is None else (then(end), used)

    aliases = frozenset(alias for alias, _ in ends)
    return [(Names(named(lambda scope: aliases), accept_qualified),), (Names(named(bare), accept_bare),)]


def _comparands(scope: Scope, strings: Callable[[Facts, ColumnRef], WordSet | None]) -> list[tuple[Symbol, ...]]:
    """What a column may be compared with, other than a column: literals that fit it, and computed values."""
    facts = scope.catalog.facts
    if facts is not None and scope.written:
        return _as_written(facts.written(scope.written))
    if scope.about is None or facts is None:
        return [(Rule("other"),)]
    texts, numbers = strings(facts, scope.about), facts.numbers(scope.about)
    if texts is None and numbers is None:
        return [(Rule("other"),)]
    text: Symbol = String() if texts is None else _literals(texts)
    number: Symbol = Number() if numbers is None else _literals(numbers)
    negative = [(Fixed("-"), number)] if numbers is None or numbers.words else []  # a minus needs a number to follow it
    return [(Rule("computed"),), (text,), (number,), *negative]


def _as_written(texts: WordSet | None) -> list[tuple[Symbol, ...]]:
    """What a part of a date may be compared with: texts that are written as it is, and computed values."""
    return [(Rule("computed"),), (String() if texts is None else _literals(texts),)]


def _literals(words: WordSet) -> Names:
    return Names(lambda scope: words, lambda scope, key: ((), scope))


def _spelled(scope: Scope) -> list[tuple[Symbol, ...]]:
    """How a function of dates reads the column just named: as a text, or as seconds or milliseconds since 1970."""
    facts, place = scope.catalog.facts, scope.about
    if facts is None or place is None:
        return [(), _SECONDS]
    ways: dict[str, list[tuple[Symbol, ...]]] = {
        "text": [(), (Fixed(","), _literals(facts.shifts))],
        "seconds": [_SECONDS],
        "milliseconds": [(Fixed("/"), _THOUSAND, *_SECONDS)],
    }
    return ways.get(facts.moment(place), [(Rule("glued"),)])


def _since(scope: Scope) -> list[tuple[Symbol, ...]]:
    """The same after a function of the column."""
    facts, place = scope.catalog.facts, scope.place
    if facts is None or place is None:
        return [(), _SECONDS]
    return [_SECONDS] if facts.moment(place) in ("seconds", "milliseconds") else [()]


def _instant(scope: Scope) -> WordSet:
    facts = scope.catalog.facts
    return facts.instants if facts is not None else literal_set(frozenset({"'now'"}))


def _strings(scope: Scope) -> list[tuple[Symbol, ...]]:
    return _comparands(scope, Facts.strings)


def _patterns(scope: Scope) -> list[tuple[Symbol, ...]]:
    return _comparands(replace(scope, written=""), Facts.patterns)


_SECONDS = (Fixed(","), _literals(literal_set(frozenset({"'unixepoch'"}))))
_THOUSAND = _literals(literal_set(frozenset({"1000", "1000.0"})))
CONDITIONS: dict[str, Symbol] = {
    "spelled": Choice(_spelled),
    "since": Choice(_since),
    "instant": Names(_instant, lambda scope, key: ((), scope)),
    "join_on": Choice(_join_on),
    "told": Choice(_strings),
    "pattern": Choice(_patterns),
}
