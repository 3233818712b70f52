"""The notation of grammars: how it is compiled, and its symbols that stand for more than one word.

Compiles grammar notation, `RULE = X 'symbol' KEYWORD rule <terminal> {action} ( a | b ) x? x*`, to rules.

A rule is a tuple of alternatives, an alternative a tuple of symbols. Repetitions and groups become rules of their own.

Symbols of the grammar that stand for more than one word: what they take, and what it leads to.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent.grammar.scope import Scope
from agent.grammar.words import WordSet

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
