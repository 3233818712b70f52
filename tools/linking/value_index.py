"""The distinct short text values of a database, indexed by their words, in memory; built once per open database, from values
that are kept on disk where they may be (`tools.databases.choices`).

Work and memory are bounded: 20,000 values per column and 300,000 in all, 80 characters per value, 3 seconds per column and 6
in all. A column that does not fit is noted as incomplete; such columns are queried for exact values for each question.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from weakref import WeakKeyDictionary

from sqlglot import exp

from tools.databases.choices import DistinctValues, Values, read_or_kept
from tools.databases.database import Database
from tools.linking.word_forms import STOP_WORDS, fold, keys, name_words, stem
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
    incomplete: list[tuple[str, str]] = field(default_factory=list)
    build_ms: float = 0.0

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
    index.build_ms = (time.perf_counter() - started) * 1000
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
