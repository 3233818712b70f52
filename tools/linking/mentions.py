"""What a question says: the words that mention clauses, and the facts that rules ask for.

`agent.grammar` binds plans to what is mentioned, and `tools.repair` repairs SQL by it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import NUMBER_WORDS, STOP_WORDS, Word, name_stems, name_words, split, stem, word_set
from tools.schema import ColumnRef, Schema, derived
from tools.sql.join_graph import Edge, described_as_identifiers, edges
from tools.sql.scope import is_number, type_kind

LONGEST_PHRASE = 6  # words; runs of capitalised words and texts in quotes may be longer
SURE = 0.97
CERTAIN = 2.0  # score of what was taught, or is a period: it is meant wherever it is said
NUMBER = re.compile(r"\d+(?:,\d{3})+|\d+(?:\.\d+)?")
_QUOTED = re.compile(r"\"([^\"]+)\"|'((?:[^']|'')+)'|“([^”]+)”|‘([^’]+)’")
_VALUE_OF = {word: str(number) for number, word in enumerate(NUMBER_WORDS)} | {
    "once": "1", "twice": "2", "both": "2", "pair": "2", "second": "2", "third": "3", "fourth": "4", "fifth": "5"
}  # fmt: skip
# Questions that ask for a part of a value. There, a phrase that matches a whole value may be meant for another column.
_ABOUT_PARTS = re.compile(r"\b(?:contain|substring|start|begin|letter|ends? with|includ|prefix|like)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QuestionContext:
    """A question and what surrounds it."""

    question: str
    values: tuple[ValueMatch, ...] = ()
    around: tuple[str, ...] = ()  # evidence, knowledge, earlier questions and their SQL
    plan: str = ""  # after which SQL is written
    without: tuple[str, ...] = ()  # rules of `tools.repair.rules` that are switched off, to measure what they bring

    def numbers(self) -> frozenset[str]:
        """The numbers that were said, as SQL writes them: 1,000 is 1000, two is 2."""
        whole = " ".join((self.question, *self.around))
        written = {number.replace(",", "") for number in NUMBER.findall(whole)} | set(re.findall(r"\d+", whole))
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
            surely = match.score >= SURE and len(match.phrase) > 1 and self.marked(match.phrase)
            if surely or match.score >= CERTAIN:
                places.setdefault(match.phrase, set()).add(place_of(match))
        return tuple(dict.fromkeys(map(frozenset, places.values())))


_SHORT = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})*(?:\.\d+)?) ?(k|m|bn|thousand|million|billion)(?!\w)", re.IGNORECASE)
_TIMES = {
    "k": 1000,
    "thousand": 1000,
    "m": 1_000_000,
    "million": 1_000_000,
    "bn": 1_000_000_000,
    "billion": 1_000_000_000,
}


def with_plain_numbers(question: str) -> str:
    """The question with numbers as SQL has them. A single m with a space before it may be metres, and stays.

    >>> with_plain_numbers("more than 1.5k, 2 million or 3M but under 5 m")
    'more than 1500, 2000000 or 3000000 but under 5 m'
    """

    def plain(found: re.Match[str]) -> str:
        number, unit = found[1].replace(",", ""), found[2]
        if unit.lower() in ("m", "k") and (" " in found[0] or unit == "m"):
            return found[0]
        return f"{(Decimal(number) * _TIMES[unit.lower()]).normalize():f}"

    return _SHORT.sub(plain, question)


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


SURELY_VALUE = 0.8  # least score of a match whose words name a value, and so no column
_SILENT = word_set("a an at by for from in of on the to")  # words of names that people leave out or put in
_GENERIC = word_set("code date id name number title total type")  # words that many names have
_RANKED = word_set("age class day grade level month position rank year")  # columns whose numbers add up to nothing
_PIECES = word_set("copy piece unit")  # what a quantity counts, where nothing is called so
_COUNTING = (("how", "many"), ("number", "of"), ("amount", "of"))
_RANKING = ("most", "fewest")
_ALIKE = 4  # letters with which two words begin that may mean the same, such as "credits" and `cred`
_NO_ROLE = word_set("id code key no number name")
_VOWELS = frozenset("aeiou")
_KINDS = word_set("as for in")
_MARKED = 0.9  # least score of a phrase in quotes or capitals, or that has a meaning of its own, such as a gender

Stems = tuple[str, ...]
Places = frozenset[ColumnRef]
Role = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """Columns of one name, said by the words `first` to `last` (exclusive) of the question."""

    first: int
    last: int
    places: frozenset[ColumnRef]

    def within(self, other: "_Span") -> bool:
        return other.first <= self.first and self.last <= other.last and self != other


@dataclass(frozen=True, slots=True)
class MentionedColumns:
    """`named`: for each column's name that a question says in full, the columns that are called so. `shadowed`: columns of
    whose names it says no words but those of such longer names, and in which it names no value. All in lower case."""

    named: tuple[frozenset[ColumnRef], ...] = ()
    shadowed: frozenset[ColumnRef] = frozenset()


def mentioned_columns(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> MentionedColumns:
    """The columns of several words whose names the question says in full, in its order, and what they leave no words for.

    All of them stand in the gold plans of the questions on held-out databases, and 98 % in those of Spider's dev questions
    (log/plan-rules.md). A single word may be said of something else, and a key may be meant by joining, so
    they are left out.

    A name counts in whatever style it is written. Here the only bed that is said is that of the bed type:

    >>> from tools.schema import Column, Table
    >>> room = Table("room", (Column("bedType", "TEXT"), Column("beds", "INTEGER"), Column("price_in_euros", "REAL")))
    >>> said = mentioned_columns(Schema((room,), "sqlite"), "What is the average price (in Euro) for each bed type?")
    >>> [sorted(places) for places in said.named], sorted(said.shadowed)
    ([[('room', 'price_in_euros')], [('room', 'bedtype')]], [('room', 'beds')])
    """
    words = [word for word in split(question) if word.key not in _SILENT]
    stems = [stem(word.key) for word in words]
    taken = words_of_values(question, values, words)
    spans = [span for span in _spans(schema, stems) if taken.isdisjoint(_inside(span))]
    longest = [span for span in spans if not any(span.within(other) for other in spans)]
    named = dict.fromkeys(span.places for span in sorted(longest, key=lambda span: span.first))
    shadowed = _shadowed(schema, stems, longest)
    holding = {(match.table.lower(), match.column.lower()) for match in values}
    return MentionedColumns(tuple(named), shadowed - holding)


def _shadowed(schema: Schema, said: Sequence[str], spans: Sequence[_Span]) -> frozenset[ColumnRef]:
    """The columns of which the question says words, but only inside spans that name others."""
    left = Counter(said)
    left.subtract(said[number] for span in spans for number in _inside(span))
    rest = frozenset(+left)
    inside = frozenset(said) - rest
    named = frozenset[ColumnRef]().union(*(span.places for span in spans))
    names = {(t.name.lower(), c.name.lower()): name_stems(c.name) - _SILENT for t in schema.tables for c in t.columns}
    found = (place for place, words in names.items() if (words & inside) - _GENERIC and not words & rest)
    return frozenset(found) - named - keys_of(schema)


def _inside(span: _Span) -> range:
    return range(span.first, span.last)


def words_of_values(question: str, values: Sequence[ValueMatch], words: Sequence[Word] | None = None) -> frozenset[int]:
    """The numbers of the words, by default of all in the question, that are, or may be, a value of the database."""
    found = ((question.find(match.phrase), match) for match in values if match.score >= SURELY_VALUE)
    spans = [(start, start + len(match.phrase)) for start, match in found if start >= 0]
    numbered = enumerate(split(question) if words is None else words)
    return frozenset(number for number, word in numbered if any(start <= word.start < end for start, end in spans))


def _spans(schema: Schema, said: Sequence[str]) -> list[_Span]:
    return [
        _Span(first, first + len(name), places)
        for name, places in _nameable(schema).items()
        for first in range(len(said) - len(name) + 1)
        if tuple(said[first : first + len(name)]) == name
    ]


def _nameable(schema: Schema) -> dict[Stems, frozenset[ColumnRef]]:
    """The columns whose names have several words, by these.

    Keys are left out, and names that are parts of longer ones: "air date" may mean an `Original_air_date`.
    """
    places: dict[Stems, set[ColumnRef]] = defaultdict(set)
    for table in schema.tables:
        for column in table.columns:
            name = tuple(stem(word) for word in name_words(column.name) if word not in _SILENT)
            places[name].add((table.name.lower(), column.name.lower()))
    keys, whole = keys_of(schema), {name for name in places if not any(set(name) < set(other) for other in places)}
    return {name: frozenset(places[name]) for name in whole if len(name) > 1 and places[name].isdisjoint(keys)}


def keys_of(schema: Schema) -> frozenset[ColumnRef]:
    """What identifies rows: SQL that joins by it may not need to name it, and people who say it may mean what it refers to."""
    own = {(table.name.lower(), c.name.lower()) for table in schema.tables for c in table.columns if c.primary_key}
    for table in schema.tables:
        for key in table.foreign_keys:
            own |= {(table.name.lower(), name.lower()) for name in key.columns}
            own |= {(key.ref_table.lower(), name.lower()) for name in key.ref_columns}
    return frozenset(own)


def counted_columns(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> tuple[Places, ...]:
    """For each name of one word that "how many", "the number of" or "the most" asks for: the columns of numbers that are called
    so. After "the most" no other column may be called alike.

    >>> from tools.schema import Column, Table
    >>> room = Table("room", (Column("beds", "INTEGER"), Column("decor", "TEXT")))
    >>> [sorted(places) for places in counted_columns(Schema((room,), "sqlite"), "How many beds are there?")]
    [[('room', 'beds')]]
    """
    numbers, taken = _amounts(schema), words_of_values(question, values)
    said = [stem(word.key) for word in split(question)]
    places = [n for n in range(2, len(said)) if said[n] in numbers and n not in taken]
    asked = [said[n] for n in places if tuple(said[n - 2 : n]) in _COUNTING]
    asked += [said[n] for n in places if said[n - 1] in _RANKING and _is_only(said[n], schema)]
    return tuple(dict.fromkeys(frozenset(numbers[name]) for name in asked))


@derived
def _amounts(schema: Schema) -> Mapping[str, set[ColumnRef]]:
    """The columns of numbers that add up, by their names of one word."""
    keys = keys_of(schema) | described_as_identifiers(schema)
    numbers: dict[str, set[ColumnRef]] = {}
    for table in schema.tables:
        for column in table.columns:
            place, name = (table.name.lower(), column.name.lower()), name_words(column.name)
            adds_up = is_number(type_kind(column.type)) and _RANKED.isdisjoint(name)
            if len(name) == 1 and adds_up and place not in keys:
                numbers.setdefault(stem(name[0]), set()).add(place)
    if "quantity" in numbers:
        return dict.fromkeys(_PIECES - _words_of_names(schema), numbers["quantity"]) | numbers
    return numbers


def _is_only(name: str, schema: Schema) -> bool:
    """Whether no column's name has the word, or one that begins like it, next to others."""
    columns = [name_words(column.name) for table in schema.tables for column in table.columns]
    return not any(word[:_ALIKE] == name[:_ALIKE] for words in columns if len(words) > 1 for word in words)


def _words_of_names(schema: Schema) -> frozenset[str]:
    """The stems of all words in names of the schema."""
    names = [name for table in schema.tables for name in (table.name, *(column.name for column in table.columns))]
    return frozenset[str]().union(*map(name_stems, names))


def mentioned_roles(schema: Schema, question: str) -> frozenset[ColumnRef]:
    """The foreign keys, in lower case, whose role the question says, of tables that have several keys to one table: a flight's
    destination. Of such keys only the one whose role is said can join.

    A role is what a key's name says besides the table and the column that it refers to; a single word may lack its vowels:

    >>> from tools.schema import Column, ForeignKey, Table
    >>> airport = Table("airports", (Column("apid", "INTEGER", primary_key=True),))
    >>> keys = [ForeignKey((name,), "airports", ("apid",)) for name in ("src_apid", "dst_apid")]
    >>> route = Table("routes", (Column("src_apid", "INTEGER"), Column("dst_apid", "INTEGER")), tuple(keys))
    >>> sorted(mentioned_roles(Schema((airport, route), "sqlite"), "How many routes have a destination in Canada?"))
    [('routes', 'dst_apid')]
    """
    said = [stem(word.key) for word in split(question)]
    found = frozenset[ColumnRef]()
    for roles in _rivals(schema).values():
        spans = {place: next(_role_spans(role, said), range(0)) for place, role in roles.items() if role}
        known = {place: span for place, span in spans.items() if span and (len(span) > 1 or all(roles.values()))}
        found |= {
            place for place, span in known.items() if not any(_is_inside(span, other) for other in known.values())
        }
    return found


def unshared(roles: frozenset[ColumnRef]) -> frozenset[ColumnRef]:
    """The keys whose names no other table's key among them has: these tell which table is meant."""
    count = Counter(column for _, column in roles)
    return frozenset(place for place in roles if count[place[1]] == 1)


def _rivals(schema: Schema) -> Mapping[tuple[str, str], Mapping[ColumnRef, Role]]:
    """For each pair of tables that several keys of one column join: these keys, and their roles."""
    groups: dict[tuple[str, str], dict[ColumnRef, Role]] = defaultdict(dict)
    for edge in edges(schema):
        if len(edge.columns) == 1:
            groups[edge.table, edge.ref_table][edge.table.lower(), edge.columns[0].lower()] = _role(edge)
    return {tables: keys for tables, keys in groups.items() if len(keys) > 1}


def _role(edge: Edge) -> Role:
    """What the key's name says besides its target."""
    target = name_stems(edge.ref_table) | name_stems(edge.ref_columns[0]) | _NO_ROLE
    return tuple(word for word in map(stem, name_words(edge.columns[0])) if word not in target)


def _role_spans(role: Role, said: list[str]) -> Iterator[range]:
    for first in range(len(said) - len(role) + 1):
        words = said[first : first + len(role)]
        if tuple(words) == role or (len(role) == 1 and _shortens(role[0], words[0])):
            yield range(first, first + len(role))


def _shortens(role: str, word: str) -> bool:
    """Whether a role is a word without its vowels and some more: `src` is the source."""
    letters = iter(word)
    return len(role) > 2 and _VOWELS.isdisjoint(role) and role[0] == word[0] and all(each in letters for each in role)


def _is_inside(span: range, other: range) -> bool:
    return other.start <= span.start and span.stop <= other.stop and span != other


def drop_unmeant(
    values: Sequence[ValueMatch], schema: Schema, context: QuestionContext
) -> tuple[ValueMatch, ...] | None:
    """The matches without those of a single plain word that is a word of the schema, or its plural: such a word says what is
    asked about. It may still be a value where a column's own name has it, `good_or_bad`, and right behind "as", "for" or "in":
    "described as research". None if all are meant.

    >>> from tools.schema import Column, Table
    >>> level = Table("levels", (Column("level_name", "TEXT"), Column("product_count", "INTEGER")))
    >>> found = [ValueMatch("levels", "level_name", "Product", phrase, score) for phrase, score in
    ...     (("products", 0.82), ("Product", 1.0))]
    >>> question = QuestionContext("Which products are on the level Product?")
    >>> [match.phrase for match in drop_unmeant(found, Schema((level,), "sqlite"), question)]
    ['Product']
    """
    kept = tuple(match for match in values if _is_meant(match, _known_words(schema), context.question))
    return kept if len(kept) < len(values) else None


@derived
def _known_words(schema: Schema) -> frozenset[str]:
    names = {name for table in schema.tables for name in (table.name, *(column.name for column in table.columns))}
    return frozenset[str]().union(*map(name_stems, names))


def _is_meant(match: ValueMatch, known: frozenset[str], question: str) -> bool:
    words = split(match.phrase)
    if match.score >= _MARKED or len(words) != 1:
        return True
    word = stem(words[0].key)
    if word not in known or word in name_stems(match.column):
        return True
    before = split(question[: max(0, question.find(match.phrase))])
    return bool(before) and before[-1].key in _KINDS
