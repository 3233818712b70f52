"""Finds phrases of a question among the values of a database: "the gilded otters" is artists.name 'The Gilded Otters'.

It is deterministic: exact matches (except for case, accents, plural) come before values that begin with the phrase, then values
that contain it, then misspelt ones; the longest phrase wins. It needs no model, and works on any engine, because it uses
`tools/linking/value_index.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tools.databases.database import Database
from tools.linking.value_index import Cell, ValueIndex, key_of, look_up, value_index
from tools.linking.word_forms import STOP_WORDS, Word, gender_codes, name_words, other_codes, places, split, stem

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
    """At most `limit` matches, best first. The first call on a database builds its index (see `value_index`)."""
    index = value_index(database)
    phrases = _phrases(question)
    hits: list[Hit] = []
    for tier in (_exact, _place_meant, _gender_meant, _beginning, _containing, _misspelt):
        for phrase in phrases:
            if not any(phrase.overlaps(hit.phrase) for hit in hits):
                hits += tier(index, phrase)
    hits += _in_large_columns(database, index, phrases)
    telling = [hit for hit in hits if hit.score >= LEAST_SCORE]
    return tuple(_match(question, hit) for hit in _ranked(telling, question)[:limit])


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
    """Whether to search for the phrase as a part of a value: not for numbers, words of the schema or sentence fragments."""
    edges = (phrase.words[0], phrase.words[-1])
    if not phrase.quoted and any(word.key in STOP_WORDS or len(word.key) < 3 for word in edges):
        return False
    if all(word.key.isdigit() or stem(word.key) in index.schema_words for word in phrase.words):
        return False
    return phrase.marked or len(phrase.words) > 1 or len(phrase.keys[0]) >= 4


def _partial(
    index: ValueIndex, phrase: Phrase, words: tuple[str, ...], base: float, found: Callable[[int], bool]
) -> list[Hit]:
    """Cells that hold these words in a row at an index that `found` accepts; the shortest cells, which they cover best."""
    wanted = tuple(stem(word) for word in words)
    rarest = min((index.by_word.get(word, []) for word in wanted), key=len)
    hits = []
    for cell in rarest:
        first = _first_index(tuple(stem(word) for word in cell.words), wanted)
        if first is not None and found(first):
            hits.append(Hit(phrase, cell, base + 0.2 * len(wanted) / len(cell.words)))
    return sorted(hits, key=lambda hit: -hit.score)[:CELLS_PER_PHRASE]


def _first_index(words: tuple[str, ...], wanted: tuple[str, ...]) -> int | None:
    starts = range(len(words) - len(wanted) + 1)
    return next((start for start in starts if words[start : start + len(wanted)] == wanted), None)


def _beginning(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    if not _is_telling(index, phrase):
        return []
    return _partial(index, phrase, phrase.keys, 0.7, lambda first: first == 0)


def _containing(index: ValueIndex, phrase: Phrase) -> list[Hit]:
    if not _is_telling(index, phrase) or not (phrase.marked or len(phrase.words) > 1):
        return []
    return _partial(index, phrase, phrase.keys, 0.5, lambda first: first > 0)


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
                hits += _partial(index, phrase, words, 0.6 * similarity - 0.2, lambda first: True)
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
