"""The notation of the grammars, its compiler, and the terminals that their rules name.

Compiles grammar notation, `RULE = X 'symbol' KEYWORD rule <terminal> {action} ( a | b ) x? x*`, to rules.

A rule is a tuple of alternatives, an alternative a tuple of symbols. Repetitions and groups become rules of their own.

Symbols of the grammar that stand for more than one word: what they take, and what it leads to.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from agent.grammar import visible_names
from agent.grammar.facts import literal_set
from agent.grammar.scope import Catalog, Nature, Output, Relation, Scope
from agent.grammar.words import (
    DATE_FORMATS,
    DATE_FUNCTIONS,
    WITHIN_DATES,
    Function,
    WordSet,
    lowered,
    makes_alias,
    name_set,
    plain_set,
)

_TOKEN = re.compile(r"'[^']+'|<\w+>|\{\w+\}|\w+|[=()|?*]")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A keyword or an operator, in lower case."""

    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to a rule: any of its alternatives."""

    name: str


Symbol = object
Sequence = tuple[Symbol, ...]
Rules = dict[str, tuple[Sequence, ...]]
Branch = tuple[Symbol | None, tuple[Sequence, ...]]


class Grammar:
    """Rules by their first symbols: a symbol that is not a rule, or None for an empty rule, and the sequences after it.

    Equal sequences are the same object, so that `=` and `<`, for example, are seen to lead to the same position.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._behind: dict[tuple[Sequence, ...], tuple[Sequence, ...]] = {}
        self._branches: dict[str, tuple[Branch, ...]] = {}

    def branches(self, rule: str) -> tuple[Branch, ...]:
        """The symbols with which a rule can begin, each with the sequences after it."""
        if rule not in self._branches:
            found = (branch for alternative in self._rules[rule] for branch in self._begin(alternative))
            self._branches[rule] = tuple(dict.fromkeys(found))
        return self._branches[rule]

    def _begin(self, sequence: Sequence) -> Iterator[Branch]:
        if not sequence:
            yield None, ()
            return
        head, tail = sequence[0], (sequence[1:],) if len(sequence) > 1 else ()
        if not isinstance(head, Rule):
            yield head, self._behind.setdefault(tail, tail)
            return
        for symbol, behind in self.branches(head.name):
            if symbol is None:
                yield from self._begin(sequence[1:])
            else:
                yield symbol, self._behind.setdefault(behind + tail, behind + tail)


def compile_grammar(text: str, terminals: dict[str, Symbol], actions: dict[str, Symbol]) -> Grammar:
    """The grammar in `text`. Raises KeyError for a terminal or an action that is not given."""
    return Grammar(_Compiler(text, terminals, actions).rules)


class _Compiler:
    def __init__(self, text: str, terminals: dict[str, Symbol], actions: dict[str, Symbol]) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0
        self._makers: dict[str, Callable[[str], Symbol]] = {
            "'": lambda token: Fixed(token[1:-1]),
            "<": lambda token: terminals[token[1:-1]],
            "{": lambda token: actions[token[1:-1]],
        }
        self.rules: Rules = {}
        while self._at < len(self._tokens):
            name = self._tokens[self._at]
            self._at += 2
            self.rules[name] = self._alternatives()

    def _alternatives(self) -> tuple[Sequence, ...]:
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        return tuple(found)

    def _sequence(self) -> Sequence:
        symbols: list[Symbol] = []
        while self._peek() not in ("", "|", ")") and self._peek(1) != "=":
            symbols.append(self._repeated(self._one()))
        return tuple(symbols)

    def _one(self) -> Symbol:
        token = self._tokens[self._at]
        self._at += 1
        if token == "(":
            rule = self._anonymous(self._alternatives())
            self._at += 1
            return rule
        if token[0] in self._makers:
            return self._makers[token[0]](token)
        return Fixed(token.lower()) if token.isupper() else Rule(token)

    def _repeated(self, symbol: Symbol) -> Symbol:
        mark = self._peek()
        if mark not in ("?", "*"):
            return symbol
        self._at += 1
        rule = Rule(f"#{len(self.rules)}.{self._at}")
        self.rules[rule.name] = ((symbol,) if mark == "?" else (symbol, rule), ())
        return rule

    def _anonymous(self, alternatives: tuple[Sequence, ...]) -> Rule:
        rule = Rule(f"({len(self.rules)}.{self._at}")
        self.rules[rule.name] = alternatives
        return rule

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead] if self._at + ahead < len(self._tokens) else ""


Step = tuple[tuple[Symbol, ...], Scope]  # symbols that must come next, and the scope from here on


@dataclass(frozen=True, slots=True)
class Number:
    """Digits, with or without a fraction."""


@dataclass(frozen=True, slots=True)
class String:
    """Text in quotes."""


@dataclass(frozen=True, slots=True)
class End:
    """The statement is complete."""


@dataclass(frozen=True, slots=True)
class Action:
    """A change of scope without a word; None if the grammar cannot go on this way. landing: the same once a long statement
    must come to its end; None if it does not differ. early: a quarter of that length is long already.
    """

    apply: Callable[[Scope], Scope | None]
    landing: Callable[[Scope], Scope | None] | None = None
    early: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A rule whose alternatives depend on the scope."""

    expand: Callable[[Scope], list[tuple[Symbol, ...]]]


@dataclass(frozen=True, slots=True)
class Names:
    """One word out of a set that depends on the scope; `accept` is given its key. grows: a long statement takes none."""

    words: Callable[[Scope], WordSet]
    accept: Callable[[Scope, str], Step | None]
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Fresh:
    """A new name: at most `letters` letters, then at most `digits` digits (if `digits` is None, any mix of both)."""

    letters: int
    digits: int | None
    available: Callable[[Scope], bool]
    accept: Callable[[Scope, str], Step | None]

    def shaped(self, text: str) -> bool:
        """Whether the lower-case `text` is such a name or the beginning of one."""
        if self.digits is None:
            return len(text) <= self.letters and re.fullmatch(r"[a-z_]\w*", text, re.ASCII) is not None
        found = re.fullmatch(r"([a-z]+)([0-9]*)", text)
        return found is not None and len(found[1]) <= self.letters and len(found[2]) <= self.digits

    def room(self, text: str) -> tuple[int, int | None]:
        """How many letters and digits may follow `text`."""
        if self.digits is None:
            return self.letters - len(text), None
        letters = len(text.rstrip("0123456789"))
        return (self.letters - letters if letters == len(text) else 0), self.digits - (len(text) - letters)


MAX_PARENTHESES = 6  # functions, casts, CASE and parentheses inside each other; of 13,690 gold queries one has 7


LAST_FREE_ALIAS = 5  # sources; a later one gets the alias that the SELECT list has used, if it may
LONG, SHORT = (40, None), (1, 1)
_WRITTEN = {"date": "%y-%m-%d", "time": "%h:%m:%s"}
_FORMATS = literal_set(frozenset(f"'{text}'" for text in DATE_FORMATS))
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
    return visible_names.useful(scope, visible_names.own_columns(scope) | aliases | visible_names.outer_columns(scope))


def _accept_column(scope: Scope, key: str) -> Step | None:
    used = scope.using(key) if key in visible_names.own_columns(scope) else scope
    return None if used is None else ((), used.reading("", key))


def _accept_qualifier(scope: Scope, key: str) -> Step | None:
    return (Fixed("."), _qualified(key, visible_names.useful_columns)), scope


def _accept_entry_qualifier(scope: Scope, key: str) -> Step | None:
    return (Fixed("."), _qualified(key, visible_names.entry_columns)), scope


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
    return frozenset() if scope.want is not None or scope.awaited else visible_names.qualifiers(scope)


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
            if visible_names.is_overdue(scope, LAST_FREE_ALIAS) and owed.words(scope).words:
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

    return Names(_plain(lambda scope: visible_names.owed_aliases(scope, relation)), accept)


def _new_alias(relation: Relation, letters: int, digits: int | None) -> Fresh:
    def accept(scope: Scope, text: str) -> Step | None:
        bound = scope.bound(relation, text)
        return ((), bound) if _is_new(scope, text) and bound is not None else None

    return Fresh(letters, digits, lambda scope: visible_names.other_alias_possible(scope, relation), accept)


def _accept_shared(scope: Scope, key: str) -> Step | None:
    return (), replace(scope, merged=(*scope.merged, key))


def _callable(scope: Scope) -> frozenset[str]:
    if scope.parentheses >= MAX_PARENTHESES:
        return frozenset()
    kinds = {"scalar"} | ({"aggregate"} if scope.aggregates else set()) | ({"window"} if scope.windows else set())
    facts = scope.catalog.facts
    found = frozenset(name for name, function in scope.catalog.functions.items() if function.kind in kinds)
    if scope.timing:
        return found & WITHIN_DATES
    undated = facts is not None and not facts.dated and scope.catalog.dialect == "sqlite"
    return found - DATE_FUNCTIONS if undated else found


def _accept_function(scope: Scope, key: str) -> Step | None:
    function = scope.catalog.functions[key]
    leave = _leave(scope)
    if key in DATE_FUNCTIONS and scope.catalog.facts is not None and scope.catalog.dialect == "sqlite":
        opening = (Fixed("("), _enter(within=scope.within, timing=True))
        if key == "strftime":
            return (*opening, Names(lambda _: _FORMATS, lambda now, form: (_formatted(form, leave), now))), scope
        return (*opening, Rule("moment"), Fixed(")"), leave, _timed(_WRITTEN.get(key, ""))), scope
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


def _enter(within: bool, adding: bool = False, timing: bool = False) -> Action:
    """Enters the arguments of a function; those of an aggregate take no aggregates. timing: it is a function of dates."""

    def apply(scope: Scope) -> Scope | None:
        inner = replace(scope, parentheses=scope.parentheses + 1, windows=False, testing=False, joints=0)
        barred = scope.barred if timing or scope.timing else None
        deeper = replace(inner, adding=adding, timing=timing or scope.timing, barred=barred)
        return replace(deeper, aggregates=False, within=True) if within else deeper

    return Action(apply)


def _leave(before: Scope) -> Action:
    """Restores what was allowed at `before`."""
    names = ("within", "aggregates", "windows", "parentheses", "adding", "timing", "testing", "joints", "barred")
    return Action(lambda scope: replace(scope, **{name: getattr(before, name) for name in names}))


def _formatted(form: str, leave: Action) -> tuple[Symbol, ...]:
    """What follows the format of STRFTIME."""
    return Fixed(","), Rule("moment"), Fixed(")"), leave, _timed(lowered(form.strip("'")))


@lru_cache(maxsize=64)
def _timed(written: str) -> Action:
    """Remembers that a function of dates was read, and how it writes them."""
    return Action(lambda scope: replace(scope, operand=(scope.qualifier, scope.column), timed=True, written=written))


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
    return scope.want is None and not scope.awaited and visible_names.new_qualifier_possible(scope)


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
    "qualifier": Names(named(visible_names.qualifiers), _accept_qualifier),
    "new_qualifier": Fresh(*SHORT, visible_names.new_qualifier_possible, _if_new(_accept_qualifier)),
    "entry_column": Names(named(visible_names.entry_columns), _accept_column),
    "entry_qualifier": Names(named(visible_names.qualifiers), _accept_entry_qualifier),
    "new_entry_qualifier": Fresh(*SHORT, visible_names.new_qualifier_possible, _if_new(_accept_entry_qualifier)),
    "starred": Names(named(_starrable), _accept_starred),
    "new_starred": Fresh(*SHORT, _new_starred_possible, _if_new(_accept_starred)),
    "output_alias": Fresh(*LONG, lambda scope: True, _accept_output_alias),
    "cte_name": Fresh(*LONG, lambda scope: True, _accept_cte_name),
    "table": Names(named(visible_names.tables), _accept_table),
    "placed": Choice(lambda scope: _placed(scope.result).expand(scope) if scope.result else []),
    "shared": Names(named(visible_names.shared_columns), _accept_shared),
    "position": Names(_plain(visible_names.positions), lambda scope, key: ((), scope)),
    "output_position": Names(_plain(_output_positions), lambda scope, key: ((), scope)),
    "output": Names(named(_outputs), lambda scope, key: ((), scope)),
    "function": Names(_plain(_callable), _accept_function, grows=True),
}
