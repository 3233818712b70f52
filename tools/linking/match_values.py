"""Finds the cell values that a question names, through an index of them. It needs no model, and works on any engine.

Work and memory are bounded: 20,000 values per column and 300,000 in all, 80 characters per value, 3 seconds per column and 6
in all. A column that does not fit is noted as incomplete; such columns are queried for exact values for each question.

It is deterministic: exact matches (except for case, accents, plural) come before values that begin with the phrase, then values
that contain it, then misspelt ones; the longest phrase wins.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from weakref import WeakKeyDictionary

from sqlglot import exp

from tools.databases.choices import DistinctValues, Values, read_or_kept
from tools.databases.database import Database
from tools.linking.word_forms import (
    JUDGING_WORDS,
    STOP_WORDS,
    Word,
    fold,
    gender_codes,
    keys,
    name_words,
    other_codes,
    places,
    split,
    stem,
)
from tools.result import Limits, QueryError
from tools.schema import Column, ColumnRef, Schema, Table
from tools.sql.scope import type_kind

VALUES_PER_COLUMN = 20_000
VALUES_IN_ALL = 300_000
LONGEST_VALUE = 80
COLUMN_DEADLINE_S = 3.0
BUILD_DEADLINE_S = 6.0
LOOKUP_DEADLINE_S = 0.5
SAME_WORD = 0.8
SHORTEST_TYPO = 5
COMMONEST_WORD = 400


@dataclass(frozen=True, slots=True)
class Cell:
    """A value that a column holds, with its comparable words."""

    table: str
    column: str
    value: str
    words: tuple[str, ...]


@dataclass(slots=True)
class ValueIndex:
    """Cells by their whole key and by each of their words, and the words by their misspellings."""

    by_key: dict[str, list[Cell]] = field(default_factory=lambda: defaultdict(list))
    by_word: dict[str, list[Cell]] = field(default_factory=lambda: defaultdict(list))
    near: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    schema_words: set[str] = field(default_factory=set)
    sizes: Counter[ColumnRef] = field(default_factory=Counter)  # how many values each column has
    incomplete: list[tuple[str, str]] = field(default_factory=list)

    def similar(self, word: str) -> list[tuple[str, float]]:
        """Indexed words that are probably meant by a misspelt one, most similar first, at most three."""
        if len(word) < SHORTEST_TYPO or word in self.by_word or word in self.schema_words or not word.isalpha():
            return []
        found = {near for key in _deletions(word) for near in self.near.get(key, ())}
        scored = [(near, SequenceMatcher(None, word, near).ratio()) for near in found]
        return sorted((pair for pair in scored if pair[1] >= SAME_WORD), key=lambda pair: (-pair[1], pair[0]))[:3]


def key_of(words: Iterable[str]) -> str:
    """One key for all spellings of the same words: without plural endings and spaces."""
    return "".join(stem(word) for word in words)


_INDEXES: WeakKeyDictionary[Database, ValueIndex] = WeakKeyDictionary()
_LOCK = threading.Lock()


def value_index(database: Database) -> ValueIndex:
    """The index of this database, built on the first call."""
    with _LOCK:
        if database not in _INDEXES:
            _INDEXES[database] = _build(database)
        return _INDEXES[database]


def _build(database: Database) -> ValueIndex:
    started = time.perf_counter()
    index, schema = ValueIndex(), database.schema()
    index.schema_words = {stem(word) for name in _names(schema) for word in name_words(name)}
    room = VALUES_IN_ALL
    columns = {(table.name, column.name): (table, column) for table, column in text_columns(schema)}
    read = read_or_kept(database, "index", list(columns), _reader(database, columns, started + BUILD_DEADLINE_S))
    for table, column in columns:
        values, complete = read.get((table, column), ((), False))
        for value in values[:room]:
            _add(index, table, column, value)
        if not complete or len(values) > room:
            index.incomplete.append((table, column))
        room = max(room - len(values), 0)
    _index_near_misses(index)
    return index


def _names(schema: Schema) -> list[str]:
    return [table.name for table in schema.tables] + [c.name for table in schema.tables for c in table.columns]


def text_columns(schema: Schema) -> list[tuple[Table, Column]]:
    """Columns that hold words: those of type text, or with no declared type, as SQLite allows."""
    return [
        (table, column)
        for table in schema.tables
        for column in table.columns
        if type_kind(column.type) in ("text", None) and "UUID" not in column.type.upper()
    ]


def _reader(
    database: Database, columns: Mapping[ColumnRef, tuple[Table, Column]], until: float
) -> Callable[[Sequence[ColumnRef]], Values]:
    """Reads columns until then, and as long as there is room for values."""
    reader = DistinctValues(database, VALUES_PER_COLUMN, LONGEST_VALUE, COLUMN_DEADLINE_S)

    def read(places: Sequence[ColumnRef]) -> Values:
        room, found = VALUES_IN_ALL, dict[ColumnRef, tuple[list[str], bool]]()
        for batch in reader.read([columns[place] for place in places], until):
            for place, values in batch.items():
                texts = sorted(value for value in values[:VALUES_PER_COLUMN] if isinstance(value, str))
                found[place] = texts, len(values) <= VALUES_PER_COLUMN
                room -= len(texts)
            if room <= 0:
                break
        return found

    return read


def relation(table: str) -> exp.Table:
    """The table in an expression. A table of another schema has the schema in its name, `sales.orders`."""
    schema, _, name = table.rpartition(".")
    return exp.table_(name, db=schema or None, quoted=True)


@lru_cache(maxsize=8192)  # many tables have the same values
def _words_of(value: str) -> tuple[tuple[str, ...], str, frozenset[str]]:
    """The comparable words of a value, their key, and their stems."""
    words = keys(value)
    stems = [stem(word) for word in words]
    return words, "".join(stems), frozenset(stems)


def _add(index: ValueIndex, table: str, column: str, value: str) -> None:
    words, key, stems = _words_of(value)
    if not words:
        return
    cell = Cell(table, column, value, words)
    index.by_key[key].append(cell)
    index.sizes[table, column] += 1
    for word in stems:
        holders = index.by_word[word]
        if len(holders) < COMMONEST_WORD:
            holders.append(cell)


def _index_near_misses(index: ValueIndex) -> None:
    for word in index.by_word:
        if len(word) >= SHORTEST_TYPO and word.isalpha() and word not in STOP_WORDS:
            for key in _deletions(word):
                index.near[key].add(word)


def _deletions(word: str) -> set[str]:
    """The word, and the word without each one of its letters: two words one edit or swap apart share one of these."""
    return {word} | {word[:index] + word[index + 1 :] for index in range(len(word))}


def look_up(database: Database, columns: Sequence[tuple[str, str]], phrases: Sequence[str]) -> list[Cell]:
    """Cells of columns that are not indexed which equal a phrase except for case; takes half a second at most in all."""
    cells: list[Cell] = []
    until = time.perf_counter() + LOOKUP_DEADLINE_S
    wanted = [exp.Literal.string(phrase.lower()) for phrase in phrases]
    for table, column in columns:
        left_s = until - time.perf_counter()
        if left_s <= 0 or not wanted:
            break
        name = exp.column(column, quoted=True)
        query = exp.select(name).distinct().from_(relation(table)).where(exp.Lower(this=name.copy()).isin(*wanted))
        result = database.execute(query.sql(database.dialect), Limits(deadline_s=left_s, max_rows=len(phrases)))
        if not isinstance(result, QueryError):
            found = [value for (value,) in result.rows if isinstance(value, str)]
            cells += [Cell(table, column, value, keys(value)) for value in sorted(found, key=fold)]
    return cells


LONGEST_PHRASE = 5
CELLS_PER_PHRASE = 3
SHORTEST_CODE = 4  # digits
SHORTEST_PLAIN_TYPO = (
    7  # minimum letters of a misspelt word that is not capitalised: short words resemble too many others
)
LEAST_SCORE = 0.4
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`", "«": "»"}


@dataclass(frozen=True, slots=True)
class ValueMatch:
    """`phrase`, as the question writes it, matches the cell `value`; `score` is 1 if they are equal, else lower."""

    table: str
    column: str
    value: str
    phrase: str
    score: float


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words `first` to `last` (exclusive) of the question; `marked` when quoted or capitalised inside a sentence."""

    words: tuple[Word, ...]
    first: int
    last: int
    quoted: bool
    marked: bool

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(word.key for word in self.words)

    def overlaps(self, other: "Phrase") -> bool:
        return self.first < other.last and other.first < self.last


@dataclass(frozen=True, slots=True)
class Hit:
    """A phrase found in a cell."""

    phrase: Phrase
    cell: Cell
    score: float


def match_values(database: Database, question: str, limit: int = 8) -> tuple[ValueMatch, ...]:
    """Matches of at most `limit` values, best first, each in all spellings that a column has of it. The first call on a
    database builds its index (see `value_index`)."""
    index = value_index(database)
    phrases = _phrases(question)
    hits: list[Hit] = []
    for tier in (_exact, _place_meant, _gender_meant, _beginning, _containing, _misspelt):
        for phrase in phrases:
            if not any(phrase.overlaps(hit.phrase) for hit in hits):
                hits += tier(index, phrase)
    hits += _in_large_columns(database, index, phrases)
    ranked = _ranked([hit for hit in hits if hit.score >= LEAST_SCORE], question)
    kept = list(dict.fromkeys(_value_meant(hit.cell) for hit in ranked))[:limit]
    return tuple(_match(question, hit) for hit in ranked if _value_meant(hit.cell) in kept)


def _value_meant(cell: Cell) -> tuple[str, str, str]:
    return cell.table, cell.column, in_one_spelling(cell.value)


def in_one_spelling(value: str) -> str:
    """The same for all spellings of a value that differ in case, accents or blanks alone.

    >>> {in_one_spelling(text) for text in ("Zürich", "zurich ", "ZÜRICH")}
    {'zurich'}
    """
    return " ".join(fold(value).split())


def spellings(values: Sequence[ValueMatch]) -> dict[tuple[ColumnRef, str], list[str]]:
    """The values of which a column has several spellings that the question may mean, with all of these."""
    found: dict[tuple[ColumnRef, str], dict[str, None]] = defaultdict(dict)
    for match in values:
        found[(match.table, match.column), in_one_spelling(match.value)][match.value] = None
    return {place: list(texts) for place, texts in found.items() if len(texts) > 1}


def _phrases(question: str) -> list[Phrase]:
    """Every run of one to five words, and quoted and capitalised runs of any length; longest first."""
    words = split(question)
    quoted = set(_quoted_spans(question, words))
    spans = {
        (first, last)
        for first in range(len(words))
        for last in range(first + 1, min(first + LONGEST_PHRASE, len(words)) + 1)
    }
    spans |= quoted | set(_capitalised_spans(words))
    phrases = [_phrase(words, first, last, (first, last) in quoted) for first, last in spans]
    telling = (p for p in phrases if p.quoted or not _only_stop_words(p, shouted=question.isupper()))
    return sorted(telling, key=lambda phrase: (phrase.first - phrase.last, phrase.first))


def _phrase(words: Sequence[Word], first: int, last: int, quoted: bool) -> Phrase:
    inside = [word for index, word in enumerate(words[first:last], first) if index > 0]
    marked = quoted or any(word.text[:1].isupper() for word in inside if word.key not in STOP_WORDS)
    return Phrase(tuple(words[first:last]), first, last, quoted, marked)


def _only_stop_words(phrase: Phrase, shouted: bool) -> bool:
    """Whether a phrase has only stop words. `OR` in capitals may be a code, unless the whole question is in capitals."""
    return all(
        _is_lone_letter(word) or (word.key in STOP_WORDS and (shouted or not _is_code(word))) for word in phrase.words
    )


def _is_lone_letter(word: Word) -> bool:
    return len(word.key) == 1 and word.key.isalpha() and not word.text.isupper()


def _is_code(word: Word) -> bool:
    return len(word.text) > 1 and word.text.isupper()


def _quoted_spans(question: str, words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    for start, letter in enumerate(question):
        opens = letter in QUOTES and not question[start - 1 : start].isalnum()
        end = question.find(QUOTES[letter], start + 1) if opens else -1
        while end > 0 and question[end + 1 : end + 2].isalnum():  # an apostrophe, not a closing quote
            end = question.find(QUOTES[letter], end + 1)
        inside = [index for index, word in enumerate(words) if start < word.start and word.end <= end]
        if inside:
            yield inside[0], inside[-1] + 1


def _capitalised_spans(words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(words):
        last = first
        while last < len(words) and (words[last].text[:1].isupper() or words[last].text.isdigit()):
            last += 1
        if last > first:
            yield first, last
        first = last + 1


def _exact(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    cells = index.by_key.get(key_of(phrase.keys), [])
    return [Hit(phrase, cell, _exact_score(index, phrase, cell)) for cell in cells if _may_be_text(phrase)]


def _may_be_text(phrase: Phrase) -> bool:
    """A bare number is a number, not the text of a cell, unless it is quoted or as long as a year or a code."""
    digits = "".join(phrase.keys)
    return phrase.quoted or not digits.isdigit() or len(digits) >= SHORTEST_CODE


def _exact_score(index: ValueIndex, phrase: Phrase, cell: Cell) -> float:
    score = 1.0 if phrase.keys == cell.words else 0.97
    if len(phrase.words) == 1 and not phrase.marked:
        if phrase.keys[0].isdigit():
            score -= 0.2  # more often a number than a text
        elif stem(phrase.keys[0]) in index.schema_words:
            score -= 0.15  # "how many dogs" may name the table
    return score


def _place_meant(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    """Cells of the place that a phrase may mean: French singers are from France, if some cell is France."""
    for place in places(" ".join(phrase.keys)):
        cells = [cell for cell in index.by_key.get(key_of(place.split()), []) if " ".join(cell.words) == place]
        if cells:
            return [Hit(phrase, cell, 0.9) for cell in cells]
    return []


def _gender_meant(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    """Codes of the gender that a word names, in columns that have a code of the other gender as well."""
    word = " ".join(phrase.keys)
    others = {(cell.table, cell.column) for cell in _cells_of(index, other_codes(word))}
    return [
        Hit(phrase, cell, 0.9) for cell in _cells_of(index, gender_codes(word)) if (cell.table, cell.column) in others
    ]


def _cells_of(index: ValueIndex, words: Sequence[str]) -> list[Cell]:
    """The cells that are one of these words."""
    return [cell for word in words for cell in index.by_key.get(key_of((word,)), []) if cell.words == (word,)]


def _is_telling(index: ValueIndex, phrase: Phrase) -> bool:
    """Whether to search for the phrase as a part of a value: not for numbers, words of the schema, sentence fragments, or what
    people call good or new."""
    edges = (phrase.words[0], phrase.words[-1])
    if not phrase.quoted and any(word.key in STOP_WORDS or len(word.key) < 3 for word in edges):
        return False
    if all(word.key.isdigit() or stem(word.key) in index.schema_words for word in phrase.words):
        return False
    if not phrase.marked and JUDGING_WORDS.issuperset(phrase.keys):
        return False
    return phrase.marked or len(phrase.words) > 1 or len(phrase.keys[0]) >= 4


def _partial(
    index: ValueIndex, phrase: Phrase, words: tuple[str, ...], base: float, found: Callable[[int], bool]
) -> list[Hit]:
    """Cells that hold these words in a row at an index that `found` accepts, those first which they cover best."""
    wanted = tuple(stem(word) for word in words)
    rarest = min((index.by_word.get(word, []) for word in wanted), key=len)
    hits = []
    for cell in rarest:
        first = _first_index(tuple(stem(word) for word in cell.words), wanted)
        if first is not None and found(first):
            hits.append(Hit(phrase, cell, base + 0.2 * len(wanted) / len(cell.words)))
    return sorted(hits, key=lambda hit: -hit.score)


def _first_index(words: tuple[str, ...], wanted: tuple[str, ...]) -> int | None:
    starts = range(len(words) - len(wanted) + 1)
    return next((start for start in starts if words[start : start + len(wanted)] == wanted), None)


def _beginning(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    """The best of each column first, that of a small column before others, and all with one score: Delta is rather one of 16
    airlines than one of 1,500 airports, whose names are shorter."""
    if not _is_telling(index, phrase):
        return []
    hits = _partial(index, phrase, phrase.keys, 0.7, lambda first: first == 0)
    firsts = {(hit.cell.table, hit.cell.column): hit for hit in reversed(hits)}
    best = [firsts[place] for place in sorted(firsts, key=lambda place: index.sizes[place])]
    others = [hit for hit in hits if hit not in best]
    return ([replace(hit, score=hits[0].score) for hit in best] + others)[:CELLS_PER_PHRASE]


def _containing(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    if not _is_telling(index, phrase) or not (phrase.marked or len(phrase.words) > 1):
        return []
    return _partial(index, phrase, phrase.keys, 0.5, lambda first: first > 0)[:CELLS_PER_PHRASE]


def _misspelt(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    """Cells that match the phrase with one word replaced by an indexed word that it resembles."""
    hits: list[Hit] = []
    for position, word in enumerate(phrase.keys):
        unsure = word in STOP_WORDS or not (phrase.marked or len(word) >= SHORTEST_PLAIN_TYPO)
        for near, similarity in index.similar(stem(word)) if not unsure else []:
            words = (*phrase.keys[:position], near, *phrase.keys[position + 1 :])
            cells = index.by_key.get(key_of(words), [])
            hits += [Hit(phrase, cell, 0.65 * similarity) for cell in cells]
            if not cells and _is_telling(index, phrase) and (phrase.marked or len(words) > 1):
                hits += _partial(index, phrase, words, 0.6 * similarity - 0.2, lambda first: True)[:CELLS_PER_PHRASE]
    return hits


def _in_large_columns(database: Database, index: ValueIndex, phrases: Sequence[Phrase]) -> list[Hit]:
    if not index.incomplete:
        return []
    by_key = {key_of(phrase.keys): phrase for phrase in reversed(phrases)}
    texts = sorted({" ".join(word.text for word in phrase.words) for phrase in phrases})
    cells = look_up(database, index.incomplete, texts)
    return [Hit(by_key[key_of(cell.words)], cell, 1.0) for cell in cells if key_of(cell.words) in by_key]


def _ranked(hits: Sequence[Hit], question: str) -> list[Hit]:
    """Best first; each further cell of one phrase scores a little less, so that no phrase fills the whole list."""
    mentioned = {stem(word.key) for word in split(question)}

    def order(hit: Hit) -> tuple[float, int, int]:
        names = name_words(hit.cell.column) + name_words(hit.cell.table)
        return (-hit.score, -len(hit.phrase.words), -sum(stem(name) in mentioned for name in names))

    seen: dict[Phrase, int] = {}
    ranked: list[tuple[float, Hit]] = []
    for hit in sorted(hits, key=order):
        rank = seen[hit.phrase] = seen.get(hit.phrase, -1) + 1
        ranked.append((hit.score - 0.04 * rank, hit))
    return [hit for _, hit in sorted(ranked, key=lambda pair: (-pair[0], -len(pair[1].phrase.words)))]


def _match(question: str, hit: Hit) -> ValueMatch:
    phrase = question[hit.phrase.words[0].start : hit.phrase.words[-1].end]
    return ValueMatch(hit.cell.table, hit.cell.column, hit.cell.value, phrase, round(hit.score, 3))
