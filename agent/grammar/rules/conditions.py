"""Choices for `sql_rules` that depend on facts: what a join may equate, and what a column may be compared with."""

from collections.abc import Callable

from agent.grammar.rules.actions import ACTIONS
from agent.grammar.rules.notation import Fixed, Rule, Symbol
from agent.grammar.rules.symbols import Choice, Names, Number, Step, String
from agent.grammar.rules.terminals import named
from agent.grammar.scope import visible_names
from agent.grammar.scope.facts import Facts
from agent.grammar.scope.scope import Scope
from agent.grammar.word_sets import WordSet
from tools.schema import ColumnRef


def _join_on(scope: Scope) -> list[tuple[Symbol, ...]]:
    """The condition of a join: two columns that are known to join, and further conditions; any condition if none are known.

    One side may be cast: in some databases two keys that join have different types, which DuckDB does not compare.
    """
    ends = visible_names.join_ends(scope)
    if not ends:
        return [(Rule("expr"),)]

    def other(end: visible_names.End) -> tuple[Symbol, ...]:
        others = ends[end]
        return Fixed("="), Choice(lambda now: [_cast(others, _nothing), *_ends(others, _nothing)])

    def other_plain(end: visible_names.End) -> tuple[Symbol, ...]:
        return Fixed("="), Choice(lambda now: _ends(ends[end], _nothing))

    ways = (*_ends(frozenset(ends), other), _cast(frozenset(ends), other_plain))
    return [(ACTIONS["product"], Fixed("true")), *((*way, Rule("more_conditions")) for way in ways)]


def _cast(
    ends: frozenset[visible_names.End], then: Callable[[visible_names.End], tuple[Symbol, ...]]
) -> tuple[Symbol, ...]:
    """One of these columns, cast to some type, followed by what `then` gives for it."""
    closing = (Fixed("as"), Rule("type"), Fixed(")"), ACTIONS["leave"])
    opening = (ACTIONS["enter"], Fixed("cast"), Fixed("("))
    return (*opening, Choice(lambda now: _ends(ends, lambda end: (*closing, *then(end)))))


def _nothing(end: visible_names.End) -> tuple[Symbol, ...]:
    return ()


def _ends(
    ends: frozenset[visible_names.End], then: Callable[[visible_names.End], tuple[Symbol, ...]]
) -> list[tuple[Symbol, ...]]:
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
    if scope.about is None or facts is None:
        return [(Rule("other"),)]
    texts, numbers = strings(facts, scope.about), facts.numbers(scope.about)
    if texts is None and numbers is None:
        return [(Rule("other"),)]
    text: Symbol = String() if texts is None else _literals(texts)
    number: Symbol = Number() if numbers is None else _literals(numbers)
    negative = [(Fixed("-"), number)] if numbers is None or numbers.words else []  # a minus needs a number to follow it
    return [(Rule("computed"),), (text,), (number,), *negative]


def _literals(words: WordSet) -> Names:
    return Names(lambda scope: words, lambda scope, key: ((), scope))


def _strings(scope: Scope) -> list[tuple[Symbol, ...]]:
    return _comparands(scope, Facts.strings)


def _patterns(scope: Scope) -> list[tuple[Symbol, ...]]:
    return _comparands(scope, Facts.patterns)


CONDITIONS: dict[str, Symbol] = {
    "join_on": Choice(_join_on),
    "told": Choice(_strings),
    "pattern": Choice(_patterns),
}
