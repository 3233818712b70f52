"""Forms lexemes from characters: which character may come next, and which position follows. Characters are lower case.

A byte above 127 is represented by the character `word_sets.OTHER`, which occurs only in strings and quoted names.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase, digits

from agent.grammar.machine import Position

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
class Reading:
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


def feed(reading: Reading, character: str) -> Reading | None:
    """The reading after one more character; None if that character is not allowed."""
    return _FEED[reading.kind](reading, character)


def expected(reading: Reading) -> frozenset[str] | None:
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


def _gap(reading: Reading, character: str) -> Reading | None:
    if character == " ":
        return Reading(reading.position, "gap", reading.text + " ") if reading.takes_space else None
    return None if character == "\n" and "\n" in reading.text else _begin(reading.position, character)


def _begin(position: Position, character: str) -> Reading | None:
    """Begin a lexeme with its first character."""
    if character == " " or (character == "\n" and position.lines):
        return Reading(position, "gap", character)
    if character == "'" and position.frontier.strings:
        return Reading(position, "string", "'")
    if character in _CLOSING:
        return _quoted(Reading(position, "quoted", ""), character)
    if not character.isascii():
        return None
    kind = "number" if character.isdigit() else "word" if character.isalpha() or character == "_" else "operator"
    return _FEED[kind](Reading(position, kind, ""), character)


def _then(reading: Reading, character: str) -> Reading | None:
    """End the lexeme; `character` begins what comes next."""
    position = reading.settled()
    return None if position is None else _begin(position, character)


def _word(reading: Reading, character: str) -> Reading | None:
    if not (character.isalnum() or character == "_") or not character.isascii():
        return _then(reading, character) if len(reading.text) > 1 or character not in "'\"" else None
    text = reading.text + character
    return Reading(reading.position, "word", text) if may_be_word(reading.position, text) else None


def may_be_word(position: Position, text: str) -> bool:
    """Whether some word that begins with `text` may stand at the position; a new name that can grow no more must be free."""
    if any(words.starts(text) for words in position.wordsets):
        return True
    return any(
        terminal.shaped(text) and (terminal.room(text) != (0, 0) or terminal.accept(scope, text) is not None)
        for terminal, (_, _, scope) in position.frontier.fresh
    )


def _number(reading: Reading, character: str) -> Reading | None:
    text = reading.text + character
    if character.isdigit() or (character == "." and reading.text):
        generic = bool(reading.position.frontier.numbers) and _NUMBER.fullmatch(text) and len(text) <= MAX_DIGITS
        named = any(words.starts(text) for words in reading.position.wordsets)
        return Reading(reading.position, "number", text) if generic or named else None
    return None if character.isalpha() or character in "_." else _then(reading, character)


def _operator(reading: Reading, character: str) -> Reading | None:
    text = reading.text + character
    if text in reading.position.operators:
        return Reading(reading.position, "operator", text)
    return None if not reading.text or text in _NEVER_JOINED else _then(reading, character)


def _string(reading: Reading, character: str) -> Reading | None:
    if reading.text == "''":
        return Reading(reading.position, "string", "'") if character == "'" else _then(reading, character)
    if character < " ":
        return None
    return Reading(reading.position, "string", "''") if character == "'" else reading


def _quoted(reading: Reading, character: str) -> Reading | None:
    """Continue a name in quotes; a text in double quotes may also be any string where strings are allowed."""
    text = reading.text + character
    if any(words.starts(text) for words in reading.position.wordsets):
        return Reading(reading.position, "quoted", text)
    if reading.closed and character != _CLOSING[reading.text[0]]:
        return _then(reading, character)
    if text[0] != '"' or not _double_quoted_strings(reading.position) or character < " ":
        return None
    return Reading(reading.position, "quoted", '"\0"' if character == '"' and not _opens(reading) else FREE)


def _opens(reading: Reading) -> bool:
    """Whether a double quote after `reading` opens a text, or reopens it as a doubled quote."""
    return reading.text == "" or reading.closed


def accepts_any_text(reading: Reading) -> bool:
    """Whether the lexeme is an open string, which may contain anything."""
    if reading.kind == "string":
        return reading.text == "'"
    open_text = reading.kind == "quoted" and not reading.closed and reading.text[0] == '"'
    return open_text and _double_quoted_strings(reading.position)


def _double_quoted_strings(position: Position) -> bool:
    return bool(position.frontier.strings) and position.dialect == "sqlite"


_FEED: dict[str, Callable[[Reading, str], Reading | None]] = {
    "gap": _gap,
    "word": _word,
    "number": _number,
    "operator": _operator,
    "string": _string,
    "quoted": _quoted,
}
