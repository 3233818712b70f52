"""The pushdown automaton: positions in a statement, the lexemes that may come next, and the positions after them.

A position is a set of configurations (stack of symbols, scope); there are several if the words so far can be read in
several ways. Positions cache their successors, so that each lexeme of a text is computed once, however often it is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from string import ascii_lowercase, digits

from agent.grammar.rules.actions import ACTIONS
from agent.grammar.rules.conditions import CONDITIONS
from agent.grammar.rules.notation import Fixed, Grammar, Rule, Sequence, Symbol, compile_grammar
from agent.grammar.rules.plan_rules import PLAN, PLAN_ACTIONS, PLAN_TERMINALS
from agent.grammar.rules.sql_rules import COMMON, DUCKDB, SQLITE
from agent.grammar.rules.symbols import Action, Choice, End, Fresh, Names, Number, String
from agent.grammar.rules.terminals import TERMINALS
from agent.grammar.scope.scope import Catalog, Scope
from agent.grammar.word_sets import WordSet, keyword_set

Stack = tuple[Sequence, "Stack"] | None  # sequences are never empty
Configuration = tuple[tuple[Sequence, ...], Stack, Scope]  # sequences to come, the stack below them, the scope
_LETTERS, _DIGITS, _QUOTES = frozenset(ascii_lowercase + "_"), frozenset(digits), frozenset("'\"")
_NONE: frozenset[str] = frozenset()
_GRAMMARS = {
    "sqlite": (COMMON + SQLITE, TERMINALS | CONDITIONS, ACTIONS),
    "duckdb": (COMMON + DUCKDB, TERMINALS | CONDITIONS, ACTIONS),
    "plan": (PLAN, PLAN_TERMINALS, PLAN_ACTIONS),
}


@lru_cache
def grammar_of(dialect: str) -> Grammar:
    """The grammar of a dialect, or of plans. Raises KeyError for a dialect without one."""
    return compile_grammar(*_GRAMMARS[dialect])


@dataclass(slots=True)
class Frontier:
    """What may come next, by kind of lexeme, each with the configurations that follow it."""

    fixed: dict[str, list[Configuration]] = field(default_factory=dict)
    names: list[tuple[Names, WordSet, Configuration]] = field(default_factory=list)
    fresh: list[tuple[Fresh, Configuration]] = field(default_factory=list)
    numbers: list[Configuration] = field(default_factory=list)
    strings: list[Configuration] = field(default_factory=list)
    complete: bool = False


@dataclass(slots=True)
class Ledger:
    """What the positions that were reached from one beginning share; they live as long as it does. lines: whether a line may
    end between two lexemes. long: lexemes after which the text must come to its end; None: never. positions: how many there
    are.
    """

    lines: bool = False
    long: int | None = None
    positions: int = 0


class Position:
    """A point between two lexemes of a statement. Compared by identity."""

    def __init__(self, dialect: str, configurations: tuple[Configuration, ...], ledger: Ledger, count: int = 0) -> None:
        """count: of the lexemes before it."""
        self.dialect, self.ledger, self._count = dialect, ledger, count
        self._grammar, self._configurations = grammar_of(dialect), configurations
        ledger.positions += 1
        self._next: dict[tuple[str, str], Position | None] = {}
        self._alike: dict[tuple[int, ...], Position] = {}

    @property
    def lines(self) -> bool:
        """Whether a line may end here. A statement that must come to its end does so in one."""
        return self.ledger.lines and not self._long()

    @property
    def complete(self) -> bool:
        """Whether the statement may end here."""
        return self.frontier.complete

    @cached_property
    def wordsets(self) -> tuple[WordSet, ...]:
        """The words that may come next, keywords first."""
        keywords = _split(frozenset(self.frontier.fixed))[0]
        unique = {id(words): words for _, words, _ in self.frontier.names}
        return (*((keywords,) if keywords.words else ()), *unique.values())

    @cached_property
    def operators(self) -> frozenset[str]:
        """The operators and punctuation that may come next, with all their prefixes."""
        return _split(frozenset(self.frontier.fixed))[1]

    @cached_property
    def openings(self) -> frozenset[str]:
        """A superset of the characters with which a lexeme may begin here."""
        frontier = self.frontier
        letters = _LETTERS if frontier.fresh else _NONE
        numbers = _DIGITS if frontier.numbers else _NONE
        quotes = _QUOTES if frontier.strings else _NONE
        return self.operators.union(letters, numbers, quotes, *(words.firsts for words in self.wordsets))

    @cached_property
    def frontier(self) -> Frontier:
        """What may come next."""
        found = Frontier()
        work = [(_pushed(ahead, below), scope) for ahead, below, scope in self._configurations]
        while work:
            stack, scope = work.pop()
            if stack is None:
                continue
            sequence, below = stack
            rest = (sequence[1:], below) if len(sequence) > 1 else below
            head = sequence[0]
            branches = self._grammar.branches(head.name) if isinstance(head, Rule) else ((head, ()),)
            for symbol, behind in branches:
                if symbol is None:
                    work.append((rest, scope))
                elif isinstance(symbol, Action):
                    apply = symbol.landing if symbol.landing and self._long(symbol.early) else symbol.apply
                    after = apply(scope)
                    if after is not None:
                        work.append((_pushed(behind, rest), after))
                elif isinstance(symbol, Names) and symbol.grows and self._long():
                    continue
                elif isinstance(symbol, Choice):
                    below_it = _pushed(behind, rest)
                    work += [(_pushed((way,), below_it), scope) for way in symbol.expand(scope)]
                else:
                    _file(found, symbol, (behind, rest, scope))
        return found

    def _long(self, early: bool = False) -> bool:
        """Whether the text must come to its end."""
        long = self.ledger.long
        return long is not None and self._count >= (long / 4 if early else long)

    def after(self, kind: str, text: str) -> "Position | None":
        """The position after one more lexeme (`text` in lower case); None if the lexeme is not allowed here."""
        key = (kind, text if kind in ("word", "operator", "quoted") or self._is_word(text) else "")
        if key not in self._next:
            configurations = tuple(self._advance(kind, text))
            self._next[key] = self._successor(configurations) if configurations else None
        return self._next[key]

    def _successor(self, configurations: tuple[Configuration, ...]) -> "Position":
        """The position for these configurations. Lexemes that lead to equal ones, such as all comparisons, share it."""
        key = tuple(id(part) for configuration in configurations for part in configuration)
        if key not in self._alike:
            self._alike[key] = Position(self.dialect, configurations, self.ledger, self._count + 1)
        return self._alike[key]

    def _is_word(self, text: str) -> bool:
        return any(text in words.words for words in self.wordsets)

    def _advance(self, kind: str, text: str) -> Iterator[Configuration]:
        frontier = self.frontier
        if kind in ("word", "operator"):
            yield from frontier.fixed.get(text, ())
        if kind in ("word", "quoted", "number"):
            named = list(self._named(text))
            yield from named
            if kind == "quoted" and not named:
                yield from frontier.strings
        if kind == "word":
            yield from self._new(text)
        elif kind == "number":
            yield from frontier.numbers
        elif kind == "string":
            yield from frontier.strings

    def _named(self, text: str) -> Iterator[Configuration]:
        for terminal, words, (behind, rest, scope) in self.frontier.names:
            if text in words.words and (step := terminal.accept(scope, words.words[text][0])) is not None:
                yield (step[0], *behind), rest, step[1]

    def _new(self, text: str) -> Iterator[Configuration]:
        for terminal, (behind, rest, scope) in self.frontier.fresh:
            if terminal.shaped(text) and (step := terminal.accept(scope, text)) is not None:
                yield (step[0], *behind), rest, step[1]


def beginning(catalog: Catalog, lines: bool = False, long: int | None = None) -> Position:
    """The position before the first word of a statement, see `Ledger` for `lines` and `long`."""
    return Position(catalog.dialect, ((((Rule("statement"),),), None, Scope(catalog)),), Ledger(lines, long))


def _pushed(sequences: tuple[Sequence, ...], stack: Stack) -> Stack:
    for sequence in reversed(sequences):
        if sequence:
            stack = (sequence, stack)
    return stack


@lru_cache(maxsize=4096)
def _split(fixed: frozenset[str]) -> tuple[WordSet, frozenset[str]]:
    """The keywords, and every prefix of an operator."""
    words = frozenset(text for text in fixed if text[0].isalpha())
    return keyword_set(words), frozenset(text[:end] for text in fixed - words for end in range(1, len(text) + 1))


def _file(found: Frontier, symbol: Symbol, configuration: Configuration) -> None:
    """Add a terminal to the list of its kind."""
    if isinstance(symbol, Fixed):
        found.fixed.setdefault(symbol.text, []).append(configuration)
    elif isinstance(symbol, Names):
        words = symbol.words(configuration[2])
        if words.words:
            found.names.append((symbol, words, configuration))
    elif isinstance(symbol, Fresh):
        if symbol.available(configuration[2]):
            found.fresh.append((symbol, configuration))
    elif isinstance(symbol, Number):
        found.numbers.append(configuration)
    elif isinstance(symbol, String):
        found.strings.append(configuration)
    elif isinstance(symbol, End):
        found.complete = True
