"""Indexes a tokenizer's vocabulary by what its tokens spell, and makes masks from it. Built once per tokenizer.

A token is a word token (at most one space, then ASCII letters, digits, `_`) or a mixed one. Masks over word tokens come
from arrays and from lookups by text; mixed tokens are in a trie that the lexer walks.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from agent.grammar.lexer import Reading, expected, feed
from agent.grammar.word_sets import OTHER, WordSet
from agent.prompts.profiles.profile import Ending
from decoding.tokenizer.detokenize import ByteLevel, byte_alphabet
from decoding.tokenizer.tokenizer import Tokenizer

Mask = NDArray[np.bool_]
_MASKS = 1024
_ALPHABET = byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_LOWER = {byte: chr(byte).lower() if byte < 128 else OTHER for byte in range(256)}
_LOWER_OF_CHARACTER = {ord(character): _LOWER[byte] for character, byte in _ALPHABET.items()}
_CHARACTERS = frozenset(_ALPHABET)
_INNER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_making = Lock()


@dataclass(slots=True)
class Node:
    """A trie node: the tokens that end here, and what follows."""

    ids: list[int] = field(default_factory=list)
    children: dict[str, "Node"] = field(default_factory=dict)

    def insert(self, text: str, number: int) -> None:
        node = self
        for character in text:
            node = node.children.setdefault(character, Node())
        node.ids.append(number)

    def walk(self, start: Reading) -> Iterator[int]:
        """Ids of all tokens whose characters the lexer accepts."""
        work: list[tuple[Node, Reading]] = [(self, start)]
        while work:
            node, reading = work.pop()
            wanted = expected(reading) if len(node.children) > 2 else None
            for character, child in node.children.items():
                after = feed(reading, character) if wanted is None or character in wanted else None
                if after is not None:
                    yield from child.ids
                    if child.children:
                        work.append((child, after))


class Vocabulary:
    """Masks are Boolean arrays [size]; they are shared, so callers must not write to them. Safe to share between threads.

    `words(words, begun, spaced)`: tokens that continue a word of which `begun` is written; `spaced`: after one space.
    `names` and `digits`: see `_Shapes`.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.size = size
        self.texts = spellings(tokenizer, size)
        self.mixed = Node()
        self._by_text: dict[str, tuple[int, ...]] = {}
        self._longest = 1
        self._tries: dict[str, Node] = {}
        self._inside: dict[str, Mask] = {}
        for number, text in enumerate(self.texts):
            if text:
                self._by_text[text] = (*self._by_text.get(text, ()), number)
                self._longest = max(self._longest, len(text))
                if _is_mixed(text):
                    self.mixed.insert(text, number)
        self.short = [number for number, text in enumerate(self.texts) if _is_short(text)]  # T1, or the 1 of it
        shapes = _Shapes(self.texts)
        self.words = lru_cache(maxsize=_MASKS)(self._words)
        self.names = lru_cache(maxsize=_MASKS)(shapes.names)
        self.digits = lru_cache(maxsize=_MASKS)(shapes.digits)

    def endings(self, ending: Ending) -> list[int]:
        """Tokens that are the end of a line, or that begin with a fence on this line or the next."""
        return [number for number, text in enumerate(self.texts) if _ENDS[ending](text)]

    def without(self, quote: str) -> Mask:
        """Tokens that stay inside a text in quotes: they contain neither the quote nor a control character."""
        if quote not in self._inside:
            self._inside[quote] = np.array([_inside(text, quote) for text in self.texts])
        return self._inside[quote]

    def containing(self, quote: str) -> Node:
        """A trie of the tokens that contain the quote."""
        if quote not in self._tries:
            self._tries[quote] = trie = Node()
            for number, text in enumerate(self.texts):
                if quote in text:
                    trie.insert(text, number)
        return self._tries[quote]

    def _words(self, words: WordSet, begun: str, spaced: bool) -> Mask:
        mask = np.zeros(self.size, dtype=np.bool_)
        texts: set[str] = set()
        for word in words.beginning(begun):
            rest = " " * spaced + word[len(begun) :]
            texts.update(rest[:end] for end in range(1 + spaced, min(len(rest), self._longest) + 1))
        mask[[number for text in texts for number in self._by_text.get(text, ())]] = True
        return mask


class _Shapes:
    """Arrays that describe the word tokens: leading space, length, length without trailing digits, and so on."""

    def __init__(self, texts: list[str]) -> None:
        words = [text if _is_word(text) else "" for text in texts]
        bodies = [word.removeprefix(" ") for word in words]
        stems = [body.rstrip("0123456789") for body in bodies]
        self._word = np.array([bool(body) for body in bodies])
        self._spaced = np.array([word.startswith(" ") for word in words])
        self._length = np.array([len(body) for body in bodies])
        self._stem = np.array([len(stem) for stem in stems])
        self._lettered = np.array([stem.isalpha() or not stem for stem in stems])
        self._opens_with_digit = np.array([body[:1].isdigit() for body in bodies])

    def names(self, letters: int, digits: int | None, inside: bool, spaced: bool) -> Mask:
        """Word tokens of at most `letters` letters, then at most `digits` digits (None: any mix of at most `letters`
        characters); `inside`: a digit may come first.
        """
        mask: Mask = self._word & (self._spaced == spaced)
        if not inside:
            mask &= ~self._opens_with_digit
        if digits is None:
            mask &= self._length <= letters
        else:
            mask &= self._lettered & (self._stem <= letters) & (self._length - self._stem <= digits)
        return mask

    def digits(self, most: int, spaced: bool) -> Mask:
        """Word tokens of at most `most` digits."""
        mask: Mask = self._word & (self._spaced == spaced) & (self._stem == 0) & (self._length <= most)
        return mask


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """The vocabulary of a tokenizer for logits of width `size`: built only once, even if several threads ask for it."""
    with _making:
        return _made(tokenizer, size)


@lru_cache(maxsize=4)
def _made(tokenizer: Tokenizer, size: int) -> Vocabulary:
    return Vocabulary(tokenizer, size)


def spellings(tokenizer: Tokenizer, size: int) -> list[str]:
    """What each token spells, in lower case, with `OTHER` for each byte above 127; empty for special and unknown tokens."""
    spelled = _spelled_bytes if isinstance(tokenizer.detokenizer(), ByteLevel) else _spelled_pieces
    known = range(min(size, tokenizer.vocab_size))
    found = ["" if tokenizer.is_special(number) else spelled(tokenizer.token(number)) for number in known]
    return found + [""] * (size - len(found))


def _lowered(spelled: bytes) -> str:
    return spelled.decode("latin-1").translate(_LOWER)


def _spelled_bytes(token: str) -> str:
    """One translation of a string: a loop over the characters of a whole vocabulary takes half a second."""
    return token.translate(_LOWER_OF_CHARACTER) if _CHARACTERS.issuperset(token) else _lowered(token.encode())


def _spelled_pieces(token: str) -> str:
    byte = _BYTE_TOKEN.fullmatch(token)
    return _lowered(bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode())


_is_short = re.compile(r" ?[a-z]?[0-9]").fullmatch
_is_word = re.compile(r" ?[a-z0-9_]+").fullmatch
_ENDS: dict[Ending, Callable[[str], object]] = {"line": "\n".__eq__, "fence": re.compile(r"\n?```").match}


def _is_mixed(text: str) -> bool:
    """Whether it is neither a word token nor one that can only occur inside quotes, such as `naïve`."""
    return not _is_word(text) and not (
        OTHER in text and (text.lstrip(" ")[:1] in _INNER or text.lstrip(" ")[:1] == OTHER)
    )


def _inside(text: str, quote: str) -> bool:
    return bool(text) and quote not in text and min(text) >= " "


def union(masks: Iterable[Mask], size: int) -> Mask:
    """A new mask that is true where any of the masks is."""
    total = np.zeros(size, dtype=np.bool_)
    for mask in masks:
        total |= mask
    return total
