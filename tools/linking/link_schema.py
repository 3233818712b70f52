"""Finds the tables and columns that a question is about, by shared words, abbreviations, synonyms, comments, matched values and
foreign keys.

It needs no model, only the schema and the value matches. The score of a name is the share of its words that the question
contains, weighted by how rare they are among the schema's names.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from heapq import nlargest
from itertools import pairwise

from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import (
    STOP_WORDS,
    implied_words,
    keys,
    name_stems,
    name_words,
    other_words,
    split,
    stands_in,
    stem,
    word_set,
)
from tools.schema import Column, Schema, Table, derived
from tools.sql.join_graph import Edge, connect, edges

MEANT = 0.8  # the question has a synonym
ABBREVIATED = 0.7
BEGINS_ALIKE = 0.75
COMMENT_WEIGHT = 0.35
SHORTEST_BEGINNING = 4
NEIGHBOUR = 0.15
KEY = 0.4
LINKED_TABLES = 250
"""More are not linked: no prompt shows so many, and a state that holds the links of all is written at every step."""


@dataclass(frozen=True, slots=True)
class Link:
    """A table, or a column of it, that the question probably needs; a higher score means more probably."""

    table: str
    column: str | None
    score: float


def link(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> tuple[Link, ...]:
    """A link for each of the best tables, and for each column of theirs with any evidence, best first; ties keep the schema's
    order."""
    said = _readers(schema)(question, True)
    columns: dict[str, list[Link]] = {}
    scores: dict[str, float] = {}
    cells: dict[str, list[ValueMatch]] = defaultdict(list)
    for match in values:
        cells[match.table].append(match)
    for table in schema.tables:
        columns[table.name] = _column_links(table, said, cells.get(table.name, ()))
        scores[table.name] = _table_score(table, said, columns[table.name], cells.get(table.name, ()))
    graph = edges(schema)
    tables = _spread(graph, scores)
    evidence = {(entry.table, entry.column): entry.score for own in columns.values() for entry in own}
    links = [Link(name, None, score) for name, score in tables.items()]
    links += [Link(*place, score) for place, score in _with_keys(graph, tables, evidence).items()]
    best = set(nlargest(LINKED_TABLES, tables, key=lambda name: tables[name]))
    telling = (replace(entry, score=round(entry.score, 4)) for entry in links if entry.table in best)
    return tuple(sorted(telling, key=lambda entry: -entry.score))


@dataclass(frozen=True, slots=True)
class Mentions:
    """The tables and columns whose whole names a question contains, and the stems of all words in the schema's names."""

    tables: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # table, column
    table_words: frozenset[str]
    column_words: frozenset[str]


def mentions(schema: Schema, question: str) -> Mentions:
    """What a question names directly: it has each word of the name, or a synonym. Values and neighbours do not count.

    The question contains the table's name and both words of a column's:

    >>> singer = Table("singer", (Column("name", "TEXT"), Column("birth_year", "INTEGER")))
    >>> named = mentions(Schema((singer,), "sqlite"), "In which birth year do most singers fall?")
    >>> named.tables, named.columns
    (('singer',), (('singer', 'birth_year'),))
    """
    return _mentions(schema)(question)


@derived
def _mentions(schema: Schema) -> Callable[[str], Mentions]:
    return lru_cache(maxsize=16)(partial(_mentioned, schema))


@derived
def _readers(schema: Schema) -> "Callable[[str, bool], _Said]":
    """Makes what is computed of a question, once for each."""
    return lru_cache(maxsize=16)(lambda question, implied: _Said.of(question, _rarity(schema), implied))


def _mentioned(schema: Schema, question: str) -> Mentions:
    said = _readers(schema)(question, False)
    places = [(table.name, column.name) for table in schema.tables for column in table.columns]
    return Mentions(
        tables=tuple(table.name for table in schema.tables if said.score(table.name) >= MEANT),
        columns=tuple(place for place in places if said.score(place[1]) >= MEANT),
        table_words=frozenset[str]().union(*(name_stems(table.name) for table in schema.tables)),
        column_words=frozenset[str]().union(*map(name_stems, dict.fromkeys(column for _, column in places))),
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """Comparable words of a text; `pairs` are adjacent words written as one, so that `high schooler` is highschooler."""

    words: frozenset[str]
    pairs: frozenset[str]
    initials: frozenset[str]

    @classmethod
    def of(cls, *phrases: Sequence[str]) -> "_Words":
        words = (word for phrase in phrases for word in phrase if word not in STOP_WORDS or word in _MEANINGFUL)
        following = [pair for phrase in phrases for pair in pairwise(phrase)]
        return cls(frozenset(words), frozenset(a + b for a, b in following), frozenset(a[0] + b for a, b in following))

    def closeness(self, word: str) -> float:
        if word in self.words or word in self.pairs:
            return 1.0
        return 0.9 if len(word) > 3 and word in self.initials else 0.0  # fname: first name

    def whole(self, name: str) -> float:
        """How surely the text contains this name of several words, written as one."""
        if name in self.words or name in self.pairs:
            return 1.0
        return 0.9 if name in self.initials else 0.0  # LName: last name


@dataclass(frozen=True, slots=True)
class _Said:
    """The question's words, and synonyms of them; what they say of a word or a name is computed once.

    `rarity`: the weights of the words of the schema's names.
    """

    question: str
    said: _Words
    meant: _Words
    rarity: Mapping[str, float]
    _closeness: dict[str, float] = field(default_factory=dict)
    _scores: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, question: str, rarity: Mapping[str, float], implied: bool = False) -> "_Said":
        """`implied`: also by what the question ranks."""
        words = [word.key for word in split(question)]
        every = [stem(word) for word in words]
        ranked = [(stem(word),) for word in implied_words(words)] if implied else []
        return cls(question, _Words.of(every), _Words.of(*other_words(every, rarity), *ranked), rarity)

    def score(self, name: str) -> float:
        """The share of the name's words that the question contains, weighted by how rare they are."""
        if name not in self._scores:
            self._scores[name] = self._score(name)
        return self._scores[name]

    def _score(self, name: str) -> float:
        if not name.isascii() and stands_in(name, self.question):
            return 1.0
        words = [stem(word) for word in name_words(name)]
        whole = self.whole("".join(words)) if len(words) > 1 else 0.0
        if whole:
            return whole
        total = sum(self.rarity.get(word, 1.0) for word in words)
        heard = sum(self.rarity.get(word, 1.0) * self.closeness(word) for word in words)
        return heard / total if total else 0.0

    def closeness(self, word: str) -> float:
        """How surely the question contains this word of a name, from 0 to 1."""
        if word not in self._closeness:
            exact = max(self.said.closeness(word), MEANT * self.meant.closeness(word))
            self._closeness[word] = exact or max((_resemblance(word, said) for said in self.said.words), default=0.0)
        return self._closeness[word]

    def whole(self, name: str) -> float:
        return max(self.said.whole(name), MEANT * self.meant.whole(name))


# Words that are stop words in cell values, but do name columns.
_MEANINGFUL = word_set("name number average total long high low old person share order live maximum minimum make type")


@lru_cache(maxsize=65_536)
def _resemblance(name: str, said: str) -> float:
    """The similarity of words with a common stem ("located", "location"), or of an abbreviation ("stu", "student")."""
    shorter, longer = sorted((name, said), key=len)
    common = next((i for i, pair in enumerate(zip(shorter, longer, strict=False)) if pair[0] != pair[1]), len(shorter))
    if common >= SHORTEST_BEGINNING and common >= 0.6 * len(longer):
        return BEGINS_ALIKE
    if len(name) >= 3 and len(said) > len(name) + 1 and name[0] == said[0] and _is_subsequence(name, said):
        return ABBREVIATED if common == len(name) or len(name) >= 4 else 0.4
    return 0.0


def _is_subsequence(short: str, long: str) -> bool:
    letters = iter(long)
    return all(letter in letters for letter in short)


@derived
def _rarity(schema: Schema) -> dict[str, float]:
    """Weight of each word of the schema's names; `id` and `name`, which are everywhere, weigh little."""
    names = [table.name for table in schema.tables] + [c.name for table in schema.tables for c in table.columns]
    counts = Counter(word for name in names for word in name_stems(name))
    return {word: 1 / (1 + math.log(count)) for word, count in counts.items()}


def _comment_score(comment: str, said: _Said) -> float:
    words = {stem(word) for word in keys(comment)} - STOP_WORDS if comment else set()
    return len(words & said.said.words) / math.sqrt(len(words)) if words else 0.0


def _column_links(table: Table, said: _Said, values: Sequence[ValueMatch]) -> list[Link]:
    scores = ((column.name, _column_score(table, column, said, values)) for column in table.columns)
    return [Link(table.name, name, score) for name, score in scores if score > 0]


def _column_score(table: Table, column: Column, said: _Said, values: Sequence[ValueMatch]) -> float:
    name, of_table = column.name, said.score(table.name)
    if not (of_table or values or column.comment):
        return said.score(name)
    short = of_table * said.score(_without_initial(name, table.name)) if of_table else 0.0
    score = max(said.score(name), short)
    score += COMMENT_WEIGHT * min(1.0, _comment_score(column.comment, said))
    matched = [match.score for match in values if match.column == name]
    # A column of a table that the question names is likelier than one of the same name in another table.
    return score + max(matched, default=0.0) + (0.3 * of_table if score or matched else 0.0)


def _without_initial(name: str, table: str) -> str:
    """The column's name without its table's initial: `dname` of dept is its name."""
    begins_alike = name[:1].casefold() == table[:1].casefold() and name[1:].isalpha()
    return name[1:] if begins_alike and len(name) >= SHORTEST_BEGINNING else ""


def _table_score(table: Table, said: _Said, columns: Sequence[Link], values: Sequence[ValueMatch]) -> float:
    """The table's own name counts most, then its two best columns, then values found in it."""
    own = sorted((entry.score for entry in columns), reverse=True)[:2]
    score = 1.2 * said.score(table.name) + sum(own) * 0.4
    score += COMMENT_WEIGHT * min(1.0, _comment_score(table.comment, said))
    return score + 0.6 * max((match.score for match in values), default=0.0)


def _spread(graph: Sequence[Edge], scores: dict[str, float]) -> dict[str, float]:
    """Add a share of the neighbours' scores: a bridge between two named tables is needed even if the question omits it."""
    gain = dict.fromkeys(scores, 0.0)
    for edge in graph:
        gain[edge.table] += NEIGHBOUR * scores[edge.ref_table]
        gain[edge.ref_table] += NEIGHBOUR * scores[edge.table]
    return {name: score + gain[name] for name, score in scores.items()}


def _with_keys(
    graph: Sequence[Edge], tables: dict[str, float], columns: dict[tuple[str, str | None], float]
) -> dict[tuple[str, str | None], float]:
    """The columns, together with those that join two likely tables, which no question names."""
    linked = dict(columns)
    for edge in graph:
        score = KEY * min(tables[edge.table], tables[edge.ref_table])
        places = [(edge.table, name) for name in edge.columns] + [(edge.ref_table, name) for name in edge.ref_columns]
        for place in places if score > 0 else ():
            linked[place] = max(linked.get(place, 0.0), score)
    return linked


def join_path(schema: Schema, tables: Sequence[str]) -> tuple[str, ...]:
    """Join conditions that connect these tables, through others if necessary, `album.artist_id = artist.id`; empty if foreign
    keys do not connect them, or if there is nothing to connect."""
    known = [table.name for table in map(schema.table, tables) if table is not None]
    tree = connect(edges(schema), known)
    return tuple(condition for edge in tree or () for condition in edge.conditions(schema.dialect))


def shortlist(schema: Schema, links: Sequence[Link], keep: int, column_budget: float = math.inf) -> Schema:
    """The schema with its `keep` best linked tables, and the bridges that connect them, in the original order. There are fewer,
    but at least one, if they would have more than `column_budget` columns.
    """
    graph, tables = edges(schema), {table.name: table for table in schema.tables}
    ranked = [entry.table for entry in links if entry.column is None][:keep]
    kept = set(ranked[:1])
    for name in ranked[1:]:
        bridges = connect(graph, [ranked[0], name]) or ()
        more = kept | {name, *(end for edge in bridges for end in (edge.table, edge.ref_table))}
        if sum(len(tables[each].columns) for each in more) > column_budget:
            break
        kept = more
    short = (table for table in schema.tables if table.name in kept)
    return replace(schema, tables=tuple(_without_lost_keys(table, kept) for table in short))


def _without_lost_keys(table: Table, kept: set[str]) -> Table:
    folded = {name.casefold() for name in kept}
    return replace(table, foreign_keys=tuple(k for k in table.foreign_keys if k.ref_table.casefold() in folded))
