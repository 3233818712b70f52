"""Limits decoding to SELECT statements, or plans, over one schema, with token masks made from the lexer's states.

The vocabulary of a tokenizer is indexed once by what its tokens spell. A token is a word token (at most one space, then ASCII
letters, digits, `_`) or a mixed one. Masks over word tokens come from arrays and from lookups by text; mixed tokens are in a
trie that the lexer walks.

A mask depends on the position between lexemes and on the lexeme begun, not on how the text was tokenised. Only `forced` looks
at tokens, because what it adds must be tokenised as the tokenizer itself would have done.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from agent.grammar.facts import facts_of
from agent.grammar.machine import MAX_DIGITS, LexState, Position, accepts_any_text, beginning, expected, feed
from agent.grammar.rules import plan_catalog
from agent.grammar.scope import Catalog, catalog_of
from agent.grammar.words import OTHER, WordSet
from agent.prompts.slots import Ending, Form
from decoding.tokenizer import ByteLevel, Tokenizer, byte_alphabet
from tools.linking.mentions import QuestionContext
from tools.schema import Schema

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

    def walk(self, start: LexState) -> Iterator[int]:
        """Ids of all tokens whose characters the lexer accepts."""
        work: list[tuple[Node, LexState]] = [(self, start)]
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


MOST_TEXT_TOKENS = 48  # of one text in quotes, where the answer has a limit
_CACHED_MASKS = 192  # cached masks of one constraint; each takes a byte per token
_READINGS = 20_000  # remembered readings after a token, of one constraint
_POSITIONS = 5_000  # remembered positions of one constraint; about ten kilobytes each


@dataclass(frozen=True, slots=True)
class State:
    """A reading, and the tokens that spell its lexeme so far; `ended` after a stop token or what else ends a text."""

    reading: LexState
    recent: tuple[int, ...] = ()
    ended: bool = False


class GrammarConstraint:
    """A `decoding.engine.constraint.Constraint[State]`. Safe to share between threads and requests.

    `key`: what the grammar is made of; with one tokenizer, constraints of equal keys allow the same.
    """

    def __init__(
        self,
        catalog: Catalog,
        tokenizer: Tokenizer,
        stop_ids: frozenset[int],
        form: Form | None,
        size: int,
        schema: Schema,
    ) -> None:
        self._catalog, self._form = catalog, form
        facts = (catalog.facts.context, catalog.facts.constraints) if catalog.facts else None
        self.key: Hashable = (schema, catalog.dialect, facts, stop_ids, form, size)
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary_of(tokenizer, size)
        self._ends = sorted(stop_ids.union(self._vocabulary.endings(form.ending) if form else ()))
        self._position = self._beginning()
        self._mask = lru_cache(maxsize=_CACHED_MASKS)(self._compute)
        self.forced = lru_cache(maxsize=_POSITIONS)(self._forced)
        self._fed = lru_cache(maxsize=_READINGS)(self._read)

    def start(self) -> State:
        """The state before the statement. Drops the cached positions once there are too many."""
        if self._position.ledger.positions > _POSITIONS:
            self._position = self._beginning()
        return State(LexState(self._position))

    def _beginning(self) -> Position:
        if self._form is None:
            return beginning(self._catalog)
        return beginning(self._catalog, self._form.ending == "fence", self._form.long)

    def allowed(self, state: State) -> Mask:
        """Mask [vocab] of the tokens that may come next. It is shared, so callers must not write to it."""
        mask = self._mask(None if state.ended else state.reading)
        return mask & ~self._vocabulary.without(state.reading.text[0]) if self._overlong(state) else mask

    def _overlong(self, state: State) -> bool:
        """Whether a text in quotes must come to its end: it has too many tokens."""
        long = self._form is not None and self._form.long is not None and len(state.recent) >= MOST_TEXT_TOKENS
        return long and not state.ended and accepts_any_text(state.reading)

    def admits(self, state: State, token: int) -> bool:
        """`allowed(state)[token]`, without computing the mask."""
        if token in self._ends:
            position = state.reading.settled()
            return state.ended or (position is not None and position.complete)
        if state.ended or (self._overlong(state) and state.reading.text[0] not in self._vocabulary.texts[token]):
            return False
        return self._fed(state.reading, token) is not None

    def step(self, state: State, token: int) -> State:
        """The state after an allowed token. Raises ValueError for any other token."""
        if token in self._ends:
            return State(state.reading, ended=True)
        before, after = state.reading, self._fed(state.reading, token)
        if after is None or state.ended:
            raise ValueError(f"token {token} is not allowed here")
        if after.kind == "gap":
            return State(after)
        same_lexeme = before.kind != "gap" and before.position is after.position
        return State(after, (*state.recent, token) if same_lexeme else (token,))

    def _forced(self, state: State) -> tuple[int, ...]:
        """Tokens for the rest of the word, if only one word fits, and for the next keyword, if only one can follow.

        Empty unless the word so far is tokenised as the tokenizer would and spelled as the schema does.
        """
        if state.ended or state.reading.kind != "word":
            return ()
        only = _only_word(state.reading)
        if only is None:
            return ()
        written = self._tokenizer.decode(state.recent)
        whole = _continued(state.reading, written, *only)
        tokens = tuple(self._tokenizer.encode(whole)) if whole else ()
        count = len(state.recent)
        return tokens[count:] if tokens[:count] == state.recent and whole != written else ()

    def _read(self, reading: LexState | None, token: int) -> LexState | None:
        """The reading after a token; None if it is not allowed."""
        text = self._vocabulary.texts[token]
        if not text:
            return None
        for character in text:
            if reading is None:
                return None
            reading = feed(reading, character)
        return reading

    def _compute(self, reading: LexState | None) -> Mask:
        mask = (
            union(_masks(self._vocabulary, reading), self._vocabulary.size)
            if reading
            else union((), self._vocabulary.size)
        )
        if reading:
            mask[list(_mixed(self._vocabulary, reading))] = True
        position = reading.settled() if reading else None
        if reading and any(place and place.frontier.fresh for place in (position, reading.position)):
            mask[[token for token in self._vocabulary.short if mask[token] and not self._fed(reading, token)]] = False
        if reading is None or (position is not None and position.complete):
            mask[self._ends] = True
        return mask


@lru_cache(maxsize=16)
def sql_constraint(
    schema: Schema,
    dialect: str,
    tokenizer: Tokenizer,
    stop_ids: frozenset[int],
    *,
    form: Form | None = None,
    size: int | None = None,
    context: QuestionContext | None = None,
) -> GrammarConstraint:
    """The constraint that allows only SELECT statements of `dialect` ("sqlite" or "duckdb") over `schema`.

    `context` limits joins, literals and the SELECT list to what fits the schema and the question (`agent.grammar.facts`).
    `form`: how the answer ends, by a stop token alone if none is given. `size` is the width of the model's logits if it differs
    from the tokenizer's. Cached. Raises ValueError for another dialect, or without a stop token.
    """
    if dialect not in ("sqlite", "duckdb"):
        raise ValueError(f"no grammar for the dialect {dialect}; decode without a constraint")
    if not stop_ids:
        raise ValueError("a constraint needs a stop token to end a statement with")
    facts = facts_of(schema, context).of_sql() if context is not None else None
    trained = (
        form is None or form.long is None
    )  # on such answers: it gets lost where it may not go on, not among products
    catalog = catalog_of(schema, dialect, facts, products=trained)
    return GrammarConstraint(catalog, tokenizer, stop_ids, form, size or tokenizer.vocab_size, schema)


@lru_cache(maxsize=16)
def plan_constraint(
    schema: Schema,
    tokenizer: Tokenizer,
    stop_ids: frozenset[int],
    *,
    form: Form | None = None,
    size: int | None = None,
    context: QuestionContext | None = None,
) -> GrammarConstraint:
    """The constraint that allows only plans (`agent.prompts.slots`) over `schema`; see `sql_constraint`."""
    facts = facts_of(schema, context).of_plans() if context is not None else None
    return GrammarConstraint(
        plan_catalog(schema, facts), tokenizer, stop_ids, form, size or tokenizer.vocab_size, schema
    )


def _masks(vocabulary: Vocabulary, reading: LexState) -> Iterator[Mask]:
    """Masks of the word tokens that may come next, or of all tokens that stay inside an open string."""
    if accepts_any_text(reading):
        yield vocabulary.without(reading.text[0])
        return
    if reading.kind == "gap":
        yield from _beginning(vocabulary, reading.position, spaced=False)
        if reading.takes_space:
            yield from _beginning(vocabulary, reading.position, spaced=True)
        return
    yield from _within(vocabulary, reading)
    position = reading.settled()
    if position is not None:
        yield from _beginning(vocabulary, position, spaced=True)
        if reading.kind not in ("word", "number"):
            yield from _beginning(vocabulary, position, spaced=False)


def _beginning(vocabulary: Vocabulary, position: Position, spaced: bool) -> Iterator[Mask]:
    """Masks of the word tokens that begin a lexeme, with or without a leading space."""
    yield from (vocabulary.words(words, "", spaced) for words in position.wordsets)
    for terminal, _ in position.frontier.fresh:
        yield vocabulary.names(terminal.letters, terminal.digits, False, spaced)
    if position.frontier.numbers:
        yield vocabulary.digits(MAX_DIGITS, spaced)


def _within(vocabulary: Vocabulary, reading: LexState) -> Iterator[Mask]:
    """Masks of the tokens that continue the lexeme begun."""
    text = reading.text
    if reading.kind in ("word", "number", "quoted"):
        yield from (vocabulary.words(words, text, False) for words in reading.position.wordsets if words.starts(text))
    if reading.kind == "word":
        for terminal, _ in reading.position.frontier.fresh:
            if terminal.shaped(text):
                yield vocabulary.names(*terminal.room(text), True, False)
    if reading.kind == "number" and reading.position.frontier.numbers:
        yield vocabulary.digits(MAX_DIGITS - len(text), False)


def _mixed(vocabulary: Vocabulary, reading: LexState) -> Iterator[int]:
    """Ids of the mixed tokens that the lexer accepts."""
    trie = vocabulary.containing(reading.text[0]) if accepts_any_text(reading) else vocabulary.mixed
    return trie.walk(reading)


def _only_word(reading: LexState) -> tuple[WordSet, str] | None:
    """The one word that begins with what was read of it, and a set that has it; None where there are others."""
    position = reading.position
    words = [(words, word) for words in position.wordsets for word in words.beginning(reading.text)]
    if len({word for _, word in words}) != 1:
        return None
    return None if any(terminal.shaped(reading.text) for terminal, _ in position.frontier.fresh) else words[0]


def _continued(reading: LexState, written: str, words: WordSet, word: str) -> str | None:
    """`written` (which ends with the only word so far) and what must follow it; None unless that is certain."""
    spelled, count = words.words[word][1], len(reading.text)
    lead, begun = written[:-count], written[-count:]
    if not spelled.startswith(begun) or not spelled[-1].isalnum():
        return None
    return lead + spelled + _next_keyword(reading.position.after("word", word))


def _next_keyword(position: Position | None) -> str:
    """A space and the next keyword, if no other lexeme can come; otherwise nothing."""
    if position is None or position.operators or position.complete:
        return ""
    frontier = position.frontier
    only = len(frontier.fixed) == 1 and not (frontier.names or frontier.fresh or frontier.numbers or frontier.strings)
    return " " + next(iter(frontier.fixed)).upper() if only else ""
