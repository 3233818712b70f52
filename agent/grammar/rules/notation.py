"""Compiles grammar notation, `RULE = X 'symbol' KEYWORD rule <terminal> {action} ( a | b ) x? x*`, to rules.

A rule is a tuple of alternatives, an alternative a tuple of symbols. Repetitions and groups become rules of their own.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
