"""The <terminals> of the grammar: words out of a set, new names, numbers, strings; and what each leads to."""

from collections.abc import Callable
from dataclasses import replace

from agent.grammar import visible_names as visible
from agent.grammar.facts import literal_set
from agent.grammar.notation import Action, Choice, End, Fixed, Fresh, Names, Number, Rule, Step, String, Symbol
from agent.grammar.scope import Catalog, Nature, Output, Relation, Scope
from agent.grammar.words import Function, WordSet, makes_alias, name_set, plain_set

MAX_PARENTHESES = 6  # functions, casts, CASE and parentheses inside each other; of 13,690 gold queries one has 7


LAST_FREE_ALIAS = 5  # sources; a later one gets the alias that the SELECT list has used, if it may
LONG, SHORT = (40, None), (1, 1)
_ESCAPES = literal_set(frozenset(f"'{sign}'" for sign in "\\/!|#$^~@"))  # ESCAPE takes one character


def named(keys: Callable[[Scope], frozenset[str]]) -> Callable[[Scope], WordSet]:
    """The words of a set of keys, as the schema spells them."""
    return lambda scope: _spelled(scope.catalog, keys(scope))


def _spelled(catalog: Catalog, keys: frozenset[str]) -> WordSet:
    if keys not in catalog.words:
        names = frozenset(catalog.spelling.get(key, key) for key in keys)
        catalog.words[keys] = name_set(names, catalog.dialect)
    return catalog.words[keys]


def _plain(keys: Callable[[Scope], frozenset[str]]) -> Callable[[Scope], WordSet]:
    return lambda scope: plain_set(keys(scope))


def _columns(scope: Scope) -> frozenset[str]:
    aliases = frozenset() if scope.within else scope.aliases
    return visible.useful(scope, visible.own_columns(scope) | aliases | visible.outer_columns(scope))


def _accept_column(scope: Scope, key: str) -> Step | None:
    used = scope.using(key) if key in visible.own_columns(scope) else scope
    return None if used is None else ((), used.reading("", key))


def _accept_qualifier(scope: Scope, key: str) -> Step | None:
    return (Fixed("."), _qualified(key, visible.useful_columns)), scope


def _accept_entry_qualifier(scope: Scope, key: str) -> Step | None:
    return (Fixed("."), _qualified(key, visible.entry_columns)), scope


def _qualified(qualifier: str, columns: Callable[[Scope, str], frozenset[str]]) -> Names:
    def accept(scope: Scope, key: str) -> Step | None:
        used = scope.owing(qualifier, key) if scope.phase == "items" else scope
        return None if used is None else ((), used.reading(qualifier, key))

    return Names(named(lambda scope: columns(scope, qualifier)), accept)


def _accept_starred(scope: Scope, key: str) -> Step | None:
    return (Fixed("."), Fixed("*"), Action(lambda now: _star_of(now, key))), scope


def _star_of(scope: Scope, qualifier: str) -> Scope | None:
    owing = scope.owing(qualifier, None)
    return None if owing is None else replace(owing, outputs=(*owing.outputs[:-1], Output(None, star=qualifier)))


def _starrable(scope: Scope) -> frozenset[str]:
    return frozenset() if scope.want is not None or scope.awaited else visible.qualifiers(scope)


def _is_new(scope: Scope, text: str) -> bool:
    taken = text in dict(scope.owed) or scope.relation(text) or scope.source(text)
    return not taken and makes_alias(text, scope.catalog.dialect)


def _if_new(accept: Callable[[Scope, str], Step | None]) -> Callable[[Scope, str], Step | None]:
    return lambda scope, text: accept(scope, text) if _is_new(scope, text) else None


def _accept_output_alias(scope: Scope, text: str) -> Step | None:
    if not scope.may_lend(text):
        return None
    called = replace(scope, outputs=(*scope.outputs[:-1], replace(scope.outputs[-1], name=text, alias=True)))
    return ((), called) if makes_alias(text, scope.catalog.dialect) else None


def _accept_cte_name(scope: Scope, text: str) -> Step | None:
    taken = any(cte.key == text for cte in scope.ctes)
    return None if taken or not makes_alias(text, scope.catalog.dialect) else ((), replace(scope, naming=text))


def _accept_table(scope: Scope, key: str) -> Step | None:
    relation = scope.relation(key)
    return None if relation is None else ((_placed(relation),), scope)


def _placed(relation: Relation) -> Choice:
    """The ways to name a relation in FROM."""

    def expand(scope: Scope) -> list[tuple[Symbol, ...]]:
        ways: list[tuple[Symbol, ...]] = [(Action(lambda now: now.bound(relation, relation.key)),)]
        if not relation.key or relation.key not in dict(scope.owed):
            owed, new, short = _owed_alias(relation), _new_alias(relation, *LONG), _new_alias(relation, *SHORT)
            if visible.is_overdue(scope, LAST_FREE_ALIAS) and owed.words(scope).words:
                return [(Fixed("as"), owed)]
            if scope.catalog.facts:  # only one way of writing aliases, AS T1, so that none arises by accident
                return [*ways, (Fixed("as"), owed), (Fixed("as"), short)]
            ways += [(Fixed("as"), owed), (Fixed("as"), new), (owed,), (short,)]
        return ways

    return Choice(expand)


def _owed_alias(relation: Relation) -> Names:
    def accept(scope: Scope, key: str) -> Step | None:
        bound = scope.bound(relation, key)
        return None if bound is None else ((), bound)

    return Names(_plain(lambda scope: visible.owed_aliases(scope, relation)), accept)


def _new_alias(relation: Relation, letters: int, digits: int | None) -> Fresh:
    def accept(scope: Scope, text: str) -> Step | None:
        bound = scope.bound(relation, text)
        return ((), bound) if _is_new(scope, text) and bound is not None else None

    return Fresh(letters, digits, lambda scope: visible.other_alias_possible(scope, relation), accept)


def _accept_shared(scope: Scope, key: str) -> Step | None:
    return (), replace(scope, merged=(*scope.merged, key))


def _callable(scope: Scope) -> frozenset[str]:
    if scope.parentheses >= MAX_PARENTHESES:
        return frozenset()
    kinds = {"scalar"} | ({"aggregate"} if scope.aggregates else set()) | ({"window"} if scope.windows else set())
    return frozenset(name for name, function in scope.catalog.functions.items() if function.kind in kinds)


def _accept_function(scope: Scope, key: str) -> Step | None:
    function = scope.catalog.functions[key]
    leave = _leave(scope)
    if function.kind == "scalar":
        return (*_call(function), leave), scope
    if function.kind == "window":
        return (*_call(function), Rule("window"), leave, _becomes("window")), scope
    return (Choice(lambda now: _aggregate(function, leave)), _becomes("aggregate"), _over(scope)), scope


def _call(function: Function) -> tuple[Symbol, ...]:
    arguments = _arguments(function.least, function.most, first=True) if function.most else ()
    return (Fixed("("), _enter(within=False), *arguments, Fixed(")"))


def _aggregate(function: Function, leave: Action) -> list[tuple[Symbol, ...]]:
    adds = function.name in ("sum", "avg", "total")
    opening = (Fixed("("), _enter(within=True, adding=adds))
    ways: list[tuple[Symbol, ...]] = [
        (*opening, *_arguments(function.least, function.most, first=True), Fixed(")"), leave)
    ]
    if function.least == 1:
        ways.append((*opening, Fixed("distinct"), Rule("argument"), Fixed(")"), leave))
    if adds:  # the rows for which a condition holds, whatever its column is
        ways.append((Fixed("("), _enter(within=True), Rule("tested"), Fixed(")"), leave))
    if function.name == "count":
        ways.append((*opening, Fixed("*"), Fixed(")"), leave))
    return ways


def _arguments(least: int, most: int, first: bool) -> tuple[Symbol, ...]:
    """`least` to `most` expressions, separated by commas."""
    if not most:
        return ()
    one = (*(() if first else (Fixed(","),)), Rule("argument"))
    if least > 0:
        return (*one, *_arguments(least - 1, most - 1, first=False))
    return (Choice(lambda scope: [(), (_MORE, *one, *_arguments(0, most - 1, first=False))]),)


_MORE = Action(lambda scope: scope, landing=lambda scope: None)  # what a long statement leaves out


def _enter(within: bool, adding: bool = False) -> Action:
    """Enters the arguments of a function; those of an aggregate take no aggregates."""

    def apply(scope: Scope) -> Scope | None:
        inner = replace(scope, parentheses=scope.parentheses + 1, windows=False, testing=False, joints=0)
        deeper = replace(inner, adding=adding)
        return replace(deeper, aggregates=False, within=True) if within else deeper

    return Action(apply)


def _leave(before: Scope) -> Action:
    """Restores what was allowed at `before`."""
    names = ("within", "aggregates", "windows", "parentheses", "adding", "testing", "joints")
    return Action(lambda scope: replace(scope, **{name: getattr(before, name) for name in names}))


def _becomes(nature: Nature) -> Action:
    return Action(lambda scope: scope if scope.nature == "window" else replace(scope, nature=nature))


def _over(before: Scope) -> Choice:
    """What may follow an aggregate."""
    inner, leave = _enter(within=True), _leave(before)
    ways: list[tuple[Symbol, ...]] = [(), (inner, Rule("filter"), leave)]
    if before.windows:
        ways.append((_enter(within=False), Rule("window"), leave, _becomes("window")))
    return Choice(lambda scope: ways)


def _new_starred_possible(scope: Scope) -> bool:
    return scope.want is None and not scope.awaited and visible.new_qualifier_possible(scope)


def _outputs(scope: Scope) -> frozenset[str]:
    return frozenset(output.name for output in scope.first or () if output.name)


def _output_positions(scope: Scope) -> frozenset[str]:
    return frozenset(map(str, range(1, len(scope.outputs) + 1)))


TERMINALS: dict[str, Symbol] = {
    "end": End(),
    "number": Number(),
    "escape": Names(lambda scope: _ESCAPES, lambda scope, key: ((), scope)),
    "string": String(),
    "column": Names(named(_columns), _accept_column),
    "qualifier": Names(named(visible.qualifiers), _accept_qualifier),
    "new_qualifier": Fresh(*SHORT, visible.new_qualifier_possible, _if_new(_accept_qualifier)),
    "entry_column": Names(named(visible.entry_columns), _accept_column),
    "entry_qualifier": Names(named(visible.qualifiers), _accept_entry_qualifier),
    "new_entry_qualifier": Fresh(*SHORT, visible.new_qualifier_possible, _if_new(_accept_entry_qualifier)),
    "starred": Names(named(_starrable), _accept_starred),
    "new_starred": Fresh(*SHORT, _new_starred_possible, _if_new(_accept_starred)),
    "output_alias": Fresh(*LONG, lambda scope: True, _accept_output_alias),
    "cte_name": Fresh(*LONG, lambda scope: True, _accept_cte_name),
    "table": Names(named(visible.tables), _accept_table),
    "placed": Choice(lambda scope: _placed(scope.result).expand(scope) if scope.result else []),
    "shared": Names(named(visible.shared_columns), _accept_shared),
    "position": Names(_plain(visible.positions), lambda scope, key: ((), scope)),
    "output_position": Names(_plain(_output_positions), lambda scope, key: ((), scope)),
    "output": Names(named(_outputs), lambda scope, key: ((), scope)),
    "function": Names(_plain(_callable), _accept_function, grows=True),
}
