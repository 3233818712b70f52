"""The pushdown automaton of the grammar, and the lexer that forms its words from characters.

The automaton knows positions in a statement, the lexemes that may come next, and the positions after them. A position is a set
of configurations (stack of symbols, scope); there are several if the words so far can be read in several ways. Positions cache
their successors, so each lexeme of a text is computed once, however often it is read.

The lexer knows which character may come next, and which position follows. Characters are lower case; a byte above 127 is
represented by the character `OTHER`, which occurs only in strings and quoted names.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from string import ascii_lowercase, digits

from agent.grammar.actions import ACTIONS, CONDITIONS
from agent.grammar.notation import (
    TERMINALS,
    Action,
    Choice,
    End,
    Fixed,
    Fresh,
    Grammar,
    Names,
    Number,
    Rule,
    Sequence,
    String,
    Symbol,
    compile_grammar,
)
from agent.grammar.rules import COMMON, DUCKDB, PLAN, PLAN_ACTIONS, PLAN_TERMINALS, SQLITE
from agent.grammar.scope import Catalog, Scope
from agent.grammar.words import WordSet, keyword_set

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


MAX_SPACES = 3
MAX_INDENT = 12  # spaces after the end of a line
MAX_DIGITS = 15
FREE = '"\0'  # an open text in double quotes that is a string, not a name
_SPACE, _SPACE_OR_LINE = frozenset(" "), frozenset(" \n")
_INNER = frozenset(ascii_lowercase + digits + "_")
_CLOSING = {'"': '"', "`": "`", "[": "]", "'": "'"}
_NEVER_JOINED = {"--", "/*"}  # comments
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LexState:
    """A point between lexemes (kind "gap", `text` is the space) or within one (`text` is its characters so far).

    Kinds: gap, word, number, operator, quoted (a name or a known literal in quotes or, in SQLite, a string), string.
    """

    position: Position
    kind: str = "gap"
    text: str = ""

    @property
    def closed(self) -> bool:
        """Whether the lexeme can end here; a string or quoted name ends only after its closing quote."""
        if self.kind == "string":
            return self.text == "''"
        if self.kind == "quoted":
            return len(self.text) > 1 and self.text.endswith(_CLOSING[self.text[0]]) and self.text != FREE
        return not (self.kind == "number" and self.text.endswith("."))

    @property
    def takes_space(self) -> bool:
        """Whether a gap may grow by a space."""
        return len(self.text) < (1 + MAX_INDENT if "\n" in self.text else MAX_SPACES)

    def settled(self) -> Position | None:
        """The position after the lexeme if it ends here; None if it cannot."""
        if self.kind == "gap":
            return self.position
        return self.position.after(self.kind, self.text) if self.closed else None


def feed(reading: LexState, character: str) -> LexState | None:
    """The reading after one more character; None if that character is not allowed."""
    return _FEED[reading.kind](reading, character)


def expected(reading: LexState) -> frozenset[str] | None:
    """A superset of the characters that `feed` accepts; None if that is not known."""
    space = _SPACE_OR_LINE if reading.position.lines else _SPACE
    if reading.kind == "gap":
        return reading.position.openings | space
    if reading.kind not in ("word", "operator"):
        return None
    after = reading.settled()
    openings = space if after is None else after.openings | space
    if reading.kind == "word":
        return openings | _INNER
    longer = (operator for operator in reading.position.operators if len(operator) > len(reading.text))
    return openings.union(operator[len(reading.text)] for operator in longer)


def _gap(reading: LexState, character: str) -> LexState | None:
    if character == " ":
        return LexState(reading.position, "gap", reading.text + " ") if reading.takes_space else None
    return None if character == "\n" and "\n" in reading.text else _begin(reading.position, character)


def _begin(position: Position, character: str) -> LexState | None:
    """Begin a lexeme with its first character."""
    if character == " " or (character == "\n" and position.lines):
        return LexState(position, "gap", character)
    if character == "'" and position.frontier.strings:
        return LexState(position, "string", "'")
    if character in _CLOSING:
        return _quoted(LexState(position, "quoted", ""), character)
    if not character.isascii():
        return None
    kind = "number" if character.isdigit() else "word" if character.isalpha() or character == "_" else "operator"
    return _FEED[kind](LexState(position, kind, ""), character)


def _then(reading: LexState, character: str) -> LexState | None:
    """End the lexeme; `character` begins what comes next."""
    position = reading.settled()
    return None if position is None else _begin(position, character)


def _word(reading: LexState, character: str) -> LexState | None:
    if not (character.isalnum() or character == "_") or not character.isascii():
        return _then(reading, character) if len(reading.text) > 1 or character not in "'\"" else None
    text = reading.text + character
    return LexState(reading.position, "word", text) if may_be_word(reading.position, text) else None


def may_be_word(position: Position, text: str) -> bool:
    """Whether some word that begins with `text` may stand at the position; a new name that can grow no more must be free."""
    if any(words.starts(text) for words in position.wordsets):
        return True
    return any(
        terminal.shaped(text) and (terminal.room(text) != (0, 0) or terminal.accept(scope, text) is not None)
        for terminal, (_, _, scope) in position.frontier.fresh
    )


def _number(reading: LexState, character: str) -> LexState | None:
    text = reading.text + character
    if character.isdigit() or (character == "." and reading.text):
        generic = bool(reading.position.frontier.numbers) and _NUMBER.fullmatch(text) and len(text) <= MAX_DIGITS
        named = any(words.starts(text) for words in reading.position.wordsets)
        return LexState(reading.position, "number", text) if generic or named else None
    return None if character.isalpha() or character in "_." else _then(reading, character)


def _operator(reading: LexState, character: str) -> LexState | None:
    text = reading.text + character
    if text in reading.position.operators:
        return LexState(reading.position, "operator", text)
    return None if not reading.text or text in _NEVER_JOINED else _then(reading, character)


def _string(reading: LexState, character: str) -> LexState | None:
    if reading.text == "''":
        return LexState(reading.position, "string", "'") if character == "'" else _then(reading, character)
    if character < " ":
        return None
    return LexState(reading.position, "string", "''") if character == "'" else reading


def _quoted(reading: LexState, character: str) -> LexState | None:
    """Continue a name in quotes; a text in double quotes may also be any string where strings are allowed."""
    text = reading.text + character
    if any(words.starts(text) for words in reading.position.wordsets):
        return LexState(reading.position, "quoted", text)
    if reading.closed and character != _CLOSING[reading.text[0]]:
        return _then(reading, character)
    if text[0] != '"' or not _double_quoted_strings(reading.position) or character < " ":
        return None
    return LexState(reading.position, "quoted", '"\0"' if character == '"' and not _opens(reading) else FREE)


def _opens(reading: LexState) -> bool:
    """Whether a double quote after `reading` opens a text, or reopens it as a doubled quote."""
    return reading.text == "" or reading.closed


def accepts_any_text(reading: LexState) -> bool:
    """Whether the lexeme is an open string, which may contain anything."""
    if reading.kind == "string":
        return reading.text == "'"
    open_text = reading.kind == "quoted" and not reading.closed and reading.text[0] == '"'
    return open_text and _double_quoted_strings(reading.position)


def _double_quoted_strings(position: Position) -> bool:
    return bool(position.frontier.strings) and position.dialect == "sqlite"


_FEED: dict[str, Callable[[LexState, str], LexState | None]] = {
    "gap": _gap,
    "word": _word,
    "number": _number,
    "operator": _operator,
    "string": _string,
    "quoted": _quoted,
}
