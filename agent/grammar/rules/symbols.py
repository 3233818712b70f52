"""Symbols of the grammar that stand for more than one word: what they take, and what it leads to."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from agent.grammar.rules.notation import Symbol
from agent.grammar.scope.scope import Scope
from agent.grammar.word_sets import WordSet

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
