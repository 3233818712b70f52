"""What is known beyond names: which columns join, what columns hold, and which values and numbers the asker named.

A small model invents literals; people hardly ever do. Of the text literals with which Spider's gold queries compare a
column, 99 % are a value found in the question or another part of it. A known value is allowed at the wrong column too:
`tools.repair.literals.move_literals` moves it, whereas a model that may not write it there would write another value instead.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from string import ascii_lowercase, digits

from agent.grammar.word_sets import WordSet, lowered
from tools.linking.match_values import ValueMatch
from tools.linking.said_columns import SaidColumns, said_columns
from tools.linking.word_forms import NUMBER_WORDS, STOP_WORDS, Word, name_stems, name_words, split, stem
from tools.schema import Column, ColumnRef, Schema
from tools.sql.joinable_columns import Joinable, identifiers, joinable
from tools.sql.scope import is_number, type_kind

LONGEST_PHRASE = 6  # words; runs of capitalised words and texts in quotes may be longer
SURE = 0.97
_NUMBER = re.compile(r"\d+(?:,\d{3})+|\d+(?:\.\d+)?")
_QUOTED = re.compile(r"\"([^\"]+)\"|'((?:[^']|'')+)'|“([^”]+)”|‘([^’]+)’")
_VALUE_OF = {word: str(number) for number, word in enumerate(NUMBER_WORDS)} | {
    "once": "1", "twice": "2", "both": "2", "pair": "2", "second": "2", "third": "3", "fourth": "4", "fifth": "5"
}  # fmt: skip
_EVERYDAY = frozenset({"0", "1"})  # numbers that a question may imply without naming them
_CODES = (*ascii_lowercase, *digits, "yes", "no", "true", "false", "null")
_PAIRS = tuple(map("".join, product(ascii_lowercase, repeat=2)))  # two-letter codes, such as fl for Florida
_IDENTIFYING = frozenset({"id", "identifier", "identification", "key"})
_NUMBERED = re.compile(r"(\w+) (?:no\.? |number |#)?\d")  # student 1004
_NESTED = re.compile(r"\bIN\b|\(\s*SELECT\b", re.IGNORECASE)
# Questions that ask for a part of a value. There, a phrase that matches a whole value may be meant for another column.
_ABOUT_PARTS = re.compile(r"\b(?:contain|substring|start|begin|letter|ends? with|includ|prefix|like)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """What the asker said, and the values found in it. `around`: evidence, knowledge, earlier questions and their SQL.

    `elsewhere`: a plan may name a column under a table that joins with its owner (`agent.prompts.mend_plan` moves it).
    `like_columns`: IN takes sub-queries over columns that hold the same values only, if there is one.
    `no_amounts`: identifiers are not added up, nor, unless the question names them, measured by `<` or tested at all where
    the `plan` has no sub-query.
    `dated`: a date column takes texts only if the question has digits.
    `named`: the plan names the columns whose names the question says in full, and none that they shadow.
    """

    question: str
    values: tuple[ValueMatch, ...] = ()
    around: tuple[str, ...] = ()
    elsewhere: bool = False
    like_columns: bool = False
    no_amounts: bool = False
    dated: bool = False
    named: bool = False
    plan: str = ""

    def numbers(self) -> frozenset[str]:
        """The numbers that were said, as SQL writes them: 1,000 is 1000, two is 2."""
        whole = " ".join((self.question, *self.around))
        written = {number.replace(",", "") for number in _NUMBER.findall(whole)} | set(re.findall(r"\d+", whole))
        words = {_VALUE_OF[word.key] for word in split(self.question) if word.key in _VALUE_OF}
        return frozenset(written | words)

    def phrases(self) -> frozenset[str]:
        """Runs of words, texts in quotes, and literals of earlier SQL, as written."""
        texts = (self.question, *self.around)
        quoted = (next(filter(None, found)) for text in texts for found in _QUOTED.findall(text))
        return frozenset(run for text in texts for run in _runs(text)).union(quoted)

    def marked(self, phrase: str) -> bool:
        """Whether the question writes the phrase as a name: in quotes, or with a capital inside a sentence."""
        text, start = self.question, self.question.find(phrase)
        quotes = text[start - 1 : start] + text[start + len(phrase) : start + len(phrase) + 1]
        capital = any(word.text[:1].isupper() for word in split(phrase) if word.key not in STOP_WORDS)
        return start > 0 and (quotes in ("''", '""', "‘’", "“”") or (capital and not text.isupper()))

    def sure(self) -> tuple[frozenset[ColumnRef], ...]:
        """For each phrase that is surely a value: the columns that hold it, in lower case. The plan must name one of them."""
        if _ABOUT_PARTS.search(self.question):
            return ()
        places: dict[str, set[ColumnRef]] = {}
        for match in self.values:
            if match.score >= SURE and len(match.phrase) > 1 and self.marked(match.phrase):
                places.setdefault(match.phrase, set()).add(place_of(match))
        return tuple(dict.fromkeys(map(frozenset, places.values())))


def _runs(text: str) -> Iterator[str]:
    words = split(text)
    for first, word in enumerate(words):
        for last in range(first, _furthest(words, first)):
            yield text[word.start : words[last].end]


def _furthest(words: Sequence[Word], first: int) -> int:
    last = first
    while last < len(words) and words[last].text[:1].isupper():
        last += 1
    return max(last, min(first + LONGEST_PHRASE, len(words)))


def place_of(match: ValueMatch) -> ColumnRef:
    """The column, in lower case, in which a value was found."""
    return match.table.lower(), match.column.lower()


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts for one question; it caches what each column may be compared with. `columns`: by (table, column) in lower case."""

    joins: Joinable
    columns: Mapping[ColumnRef, Column]
    said: Said
    identifiers: frozenset[ColumnRef] = frozenset()
    named: SaidColumns = field(default_factory=SaidColumns)
    _sets: dict[tuple[str, ColumnRef], WordSet | None] = field(default_factory=dict, repr=False)

    @cached_property
    def sure(self) -> tuple[frozenset[ColumnRef], ...]:
        """For each value that the question surely names the columns of the schema that hold it, if there are any; and for each
        name of a column that it says the columns that are called so."""
        found = (places.intersection(self.columns) for places in self.said.sure())
        return tuple(dict.fromkeys((*(places for places in found if places), *self.named.named)))

    def may_sum(self, place: ColumnRef) -> bool:
        """Whether adding up this column makes sense, which it does not for words and identifiers."""
        return _holds(self.columns[place]) != "words" and not (self.said.no_amounts and place in self.identifiers)

    def may_measure(self, place: ColumnRef | None) -> bool:
        """Whether `<` and BETWEEN make sense for this column: identifiers mean nothing but the rows that they name."""
        return place not in self._silent_identifiers

    def may_test(self, place: ColumnRef) -> bool:
        """Whether a condition may begin with this column."""
        return place not in self._silent_identifiers or _NESTED.search(self.said.plan) is not None

    @cached_property
    def _silent_identifiers(self) -> frozenset[ColumnRef]:
        """The identifiers that the question does not name, as "id", by their own words, or as "store 1"."""
        question = self.said.question
        stems = frozenset(stem(word.key) for word in split(question))
        if not self.said.no_amounts or stems & _IDENTIFYING:
            return frozenset()
        numbered = frozenset(stem(found.lower()) for found in _NUMBERED.findall(question))
        return frozenset(
            (table, column)
            for table, column in self.identifiers
            if not (name_stems(column) - name_stems(table)) & stems
            and not (name_stems(table) | name_stems(column)) & numbered
        )

    def strings(self, place: ColumnRef) -> WordSet | None:
        """The text literals, quotes included, that this column may be compared with; None for any."""
        return self._remembered(place, self._strings)

    def patterns(self, place: ColumnRef) -> WordSet | None:
        """The patterns, quotes included, that this column may be matched with by LIKE; None for any."""
        return self._remembered(place, self._patterns)

    def numbers(self, place: ColumnRef) -> WordSet | None:
        """The number literals that this column may be compared with; None for any."""
        return self._remembered(place, self._numbers)

    def _remembered(self, place: ColumnRef, make: Callable[[ColumnRef], frozenset[str] | None]) -> WordSet | None:
        key = (make.__name__, place)
        if key not in self._sets:
            made = make(place)
            self._sets[key] = None if made is None else literal_set(made)
        return self._sets[key]

    def _strings(self, place: ColumnRef) -> frozenset[str] | None:
        column, holds = self.columns[place], _holds(self.columns[place])
        if holds == "anything":
            undated = self.said.dated and type_kind(column.type) == "time" and not self._said_numbers
            return frozenset(map(_quote, self._found)) if undated else None
        if holds != "words":
            return frozenset(map(_quote, {*self._found, *self._said_numbers})) or (
                frozenset() if self.said.dated else None
            )
        codes = _PAIRS if all(len(sample) == 2 for sample in column.samples) else _CODES
        return frozenset(map(_quote, {*column.samples, *self._found, *self._plausible, *codes}))

    def _patterns(self, place: ColumnRef) -> frozenset[str] | None:
        column = self.columns[place]
        if _holds(column) == "anything" or any(letter.isdigit() for sample in column.samples for letter in sample):
            return None
        texts = {*column.samples, *self._found, *self.said.phrases(), *_CODES}
        return frozenset(
            _quote(before + text + after) for text in texts for before, after in product(("", "%"), repeat=2)
        )

    def _numbers(self, place: ColumnRef) -> frozenset[str] | None:
        column, holds = self.columns[place], _holds(self.columns[place])
        if holds == "words":
            return frozenset()
        flags = _EVERYDAY if _EVERYDAY.issuperset(column.samples) else frozenset[str]()
        return self._said_numbers | flags if self._said_numbers - _EVERYDAY and holds != "anything" else None

    @cached_property
    def _said_numbers(self) -> frozenset[str]:
        return self.said.numbers()

    @cached_property
    def _found(self) -> frozenset[str]:
        """Values of any column. `tools.repair.literals.move_literals` can move them, whereas nothing could recover them if the
        model had to write something else.
        """
        return frozenset(match.value for match in self.said.values)

    @cached_property
    def _plausible(self) -> frozenset[str]:
        """Phrases except single unmarked words that are stop words or words of the schema."""
        names = _schema_words(frozenset(name for place in self.columns for name in place))
        return frozenset(
            phrase for phrase in self.said.phrases() if self.said.marked(phrase) or not _is_everyday(phrase, names)
        )


def _is_everyday(phrase: str, names: frozenset[str]) -> bool:
    words = split(phrase)
    return len(words) == 1 and (words[0].key in STOP_WORDS or stem(words[0].key) in names)


@lru_cache(maxsize=16)
def _schema_words(names: frozenset[str]) -> frozenset[str]:
    return frozenset(stem(word) for name in names for word in name_words(name))


def facts_of(schema: Schema, said: Said) -> Facts:
    """The facts that follow from a schema and from what was said."""
    columns = {(table.name.lower(), column.name.lower()): column for table in schema.tables for column in table.columns}
    named = said_columns(schema, said.question, said.values) if said.named else SaidColumns()
    return Facts(_joinable(schema), columns, said, _identifiers(schema), named)


_joinable = lru_cache(maxsize=16)(joinable)
_identifiers = lru_cache(maxsize=16)(identifiers)


@lru_cache(maxsize=4096)
def literal_set(texts: frozenset[str]) -> WordSet:
    """Literals as words, in lower case like everything that the lexer compares."""
    return WordSet({lowered(text): (text, text) for text in texts})


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _holds(column: Column) -> str:
    """One of "numbers", "words", "digits" (text that looks like numbers) and "anything" (type and samples do not tell)."""
    kind = type_kind(column.type)
    numeric = [_NUMBER.fullmatch(sample.strip().lstrip("-")) is not None for sample in column.samples]
    if is_number(kind):
        return "numbers" if all(numeric) else "anything"
    if kind not in ("text", None) or not column.samples:
        return "anything"
    return "digits" if all(numeric) else "words"
