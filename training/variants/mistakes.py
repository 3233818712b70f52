"""Wrong SQL from right SQL, and questions that contrast with others.

Makes a question that contrasts with another: the same words and the same query, except for one column, value or table.

Such a question is self-contained, however much it resembles the former one. The question must name what is replaced in
words, and only once: "the number of singers for each country" -> "for each genre". Callers must still run the result.

Makes wrong SQL from right SQL with one mistake at a time, as small models make them. Callers find out what it causes.

Words that people use for the names in a schema: labels, singular and plural.

Learns synonyms for the words of names from Spider-Syn's questions, in which its authors replaced schema words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from random import Random

from sqlglot import exp

from eval.datasets.follow_ups import is_key, spoken
from eval.datasets.gold_sql import identifier, place_of, relations
from tools.linking.word_forms import STOP_WORDS, Word, name_words, split, stem, word_set
from tools.schema import Column, Schema, Table

Exchange = Callable[[str, exp.Select, Schema, Random], str | None]
"""Changes the query in place and returns the new question; None if the change does not apply."""
MOST_WORDS = 2  # people would not say longer names like this
LONGEST = 30  # characters of a value


def exchange_group(text: str, select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Group by another column of the same table: "for each genre" instead of "for each country"."""
    group = select.args.get("group")
    keys = group.expressions if isinstance(group, exp.Group) else []
    place = place_of(keys[0], schema) if len(keys) == 1 and isinstance(keys[0], exp.Column) else None
    table = schema.table(place[0]) if place else None
    if place is None or table is None:
        return None
    meant = [column for column in select.find_all(exp.Column) if place_of(column, schema) == place]
    if not all(isinstance(column.parent, exp.Select | exp.Group | exp.Ordered) for column in meant):
        return None
    names = [column.name for column in table.columns if not is_key(column)]
    other, changed = _exchanged(text, place[1], names, rng)
    for column in meant if changed else ():
        column.set("this", identifier(other))
    return changed


def exchange_value(text: str, select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Compare the same column with another value."""
    conditions = list(_conditions(select, schema))
    if len(conditions) != 1:
        return None
    literal, column = conditions[0]
    old = str(literal.this)
    others = [value for value in column.samples if len(value) <= LONGEST and _alike(value, literal)]
    spans = list(re.finditer(rf"(?<!\w){re.escape(old)}(?!\w)", text, re.IGNORECASE))
    if not others or len(spans) != 1:
        return None
    new = rng.choice(others)
    literal.set("this", new)
    return _replaced(text, spans[0].start(), spans[0].end(), new)


def exchange_table(text: str, select: exp.Select, schema: Schema, rng: Random) -> str | None:
    """Count the rows of another table."""
    entries = relations(select)
    narrowed = any(select.args.get(part) for part in ("where", "group", "having", "limit", "order"))
    if len(entries) != 1 or not isinstance(entries[0], exp.Table) or not _counts_rows(select) or narrowed:
        return None
    names = [table.name for table in schema.tables if len(table.foreign_keys) < 2]
    other, changed = _exchanged(text, entries[0].name, names, rng)
    if changed:
        entries[0].set("this", identifier(other))
    return changed


EXCHANGES: Mapping[str, Exchange] = {"group": exchange_group, "value": exchange_value, "table": exchange_table}


def _counts_rows(select: exp.Select) -> bool:
    items = [item.unalias() for item in select.expressions]
    return len(items) == 1 and isinstance(items[0], exp.Count) and isinstance(items[0].this, exp.Star)


def _conditions(select: exp.Select, schema: Schema) -> Iterator[tuple[exp.Literal, Column]]:
    """Every literal that is compared with a column for equality, and the column."""
    for condition in select.find_all(exp.EQ):
        column, literal = condition.this, condition.expression
        place = place_of(column, schema) if isinstance(column, exp.Column) else None
        table = schema.table(place[0]) if place else None
        known = table.column(place[1]) if place and isinstance(table, Table) else None
        if isinstance(literal, exp.Literal) and known is not None:
            yield literal, known


def _alike(value: str, literal: exp.Literal) -> bool:
    """Whether the value is of the literal's kind, but another one: a whole number for a whole number, a text for a text."""
    old = str(literal.this)
    same_sort = value.isdigit() == old.isdigit() and (literal.is_string or old.isdigit())
    return same_sort and value.casefold() != old.casefold()


def _exchanged(text: str, old: str, names: Sequence[str], rng: Random) -> tuple[str, str | None]:
    """One of the other names, and the text with it instead of the old one; None unless the text names the old one once."""
    words = split(text)
    said = {stem(word.key) for word in words}
    others = [name for name in names if name != old and not said.intersection(_stems(name)) and _is_sayable(name)]
    spans = _spans(words, _stems(old))
    if not others or len(spans) != 1:
        return old, None
    other, (first, last) = rng.choice(others), spans[0]
    new = spoken(other)
    plural = stem(last.key) != last.key and stem(new) == new
    return other, _replaced(text, first.start, last.end, _plural(new) if plural else new)


def _stems(name: str) -> list[str]:
    return [stem(word) for word in name_words(name)]


def _is_sayable(name: str) -> bool:
    """Whether the name consists of one or two whole words."""
    words = name_words(name)
    return 0 < len(words) <= MOST_WORDS and all(len(word) > 2 and word.isalpha() for word in words)


def _spans(words: Sequence[Word], stems: Sequence[str]) -> list[tuple[Word, Word]]:
    """First and last word of every run of words with these stems."""
    size = len(stems)
    places = range(len(words) - size + 1) if size else ()
    runs = (words[place : place + size] for place in places)
    return [(run[0], run[-1]) for run in runs if [stem(word.key) for word in run] == list(stems)]


def _replaced(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"


Corruption = Callable[[exp.Query, Schema, Random], bool]
"""Changes the tree in place; returns False if there is nothing to change."""


def wrong_column(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Replace a column by one that another table of the schema has."""
    column = _any_column(tree, rng)
    others = sorted({c.name for table in schema.tables for c in table.columns})
    if column is None or not others:
        return False
    column.set("this", identifier(rng.choice(others)))
    return True


def invented_column(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Replace a column by a plausible one that does not exist: `singer_name` for name, `name` for singer_name."""
    column = _any_column(tree, rng)
    if column is None:
        return False
    table = rng.choice([table.name for table in schema.tables])
    head, _, tail = column.name.partition("_")
    column.set("this", identifier(rng.choice([f"{table}_{column.name}", tail or head, f"{head}_id", f"{head}_name"])))
    return True


def wrong_table(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Read the columns of one table from another."""
    tables = [node for node in tree.find_all(exp.Table) if schema.table(node.name)]
    others = [table.name for table in schema.tables]
    if not tables or len(others) < 2:
        return False
    table = rng.choice(tables)
    table.set("this", identifier(rng.choice([name for name in others if name != table.name])))
    return True


def wrong_qualifier(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Write `singer.title` for `concert.title`, or `T2.name` if there is no T2."""
    columns = [column for column in tree.find_all(exp.Column) if column.table]
    if not columns:
        return False
    column = rng.choice(columns)
    names = [table.name for table in schema.tables] + ["T1", "T2"]
    column.set("table", identifier(rng.choice([name for name in names if name != column.table])))
    return True


def missing_join(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Leave out a joined table, but not its columns."""
    selects = [select for select in tree.find_all(exp.Select) if select.args.get("joins")]
    if not selects:
        return False
    joins = rng.choice(selects).args["joins"]
    joins.remove(rng.choice(joins))
    return True


def other_aggregate(tree: exp.Query, schema: Schema, rng: Random) -> bool:
    """Write SUM for COUNT, in HAVING or in the output."""
    aggregates = list(tree.find_all(exp.Count, exp.Sum, exp.Avg, exp.Max, exp.Min))
    if not aggregates:
        return False
    node = rng.choice(aggregates)
    other = rng.choice([kind for kind in (exp.Count, exp.Sum, exp.Avg, exp.Max, exp.Min) if not isinstance(node, kind)])
    node.replace(other(this=node.this.copy()))
    return True


# Corruptions that do not bind: for this reason the agent asks again.
BINDING: Mapping[str, Corruption] = {
    "wrong column": wrong_column,
    "invented column": invented_column,
    "wrong table": wrong_table,
    "wrong qualifier": wrong_qualifier,
    "missing join": missing_join,
    "other aggregate": other_aggregate,
}


def corrupted(tree: exp.Query, schema: Schema, kinds: Sequence[Corruption], rng: Random) -> exp.Query | None:
    """A copy with one mistake of these kinds; None if none applies."""
    copy = tree.copy()
    for corrupt in rng.sample(kinds, len(kinds)):
        if corrupt(copy, schema, rng) and copy != tree:
            return copy
    return None


def _any_column(tree: exp.Query, rng: Random) -> exp.Column | None:
    columns = [column for column in tree.find_all(exp.Column) if not column.is_star]
    return rng.choice(columns) if columns else None


_IRREGULAR = {
    "person": "people",
    "child": "children",
    "man": "men",
    "woman": "women",
    "foot": "feet",
    "mouse": "mice",
    "goose": "geese",
}
_SAME = word_set("""
    staff faculty series species sheep fish aircraft information equipment music data news software percent from to in on by of
    at km
""")
_HEAD = re.compile(r"^(.+?)( (?:for|of|in|per|from|to) .+)$")


def plural(word: str) -> str:
    """The plural of the last word of a label or a name, or of the one before a preposition.

    >>> [plural(label) for label in ("city", "race", "class", "staff", "key", "home_town", "head of state")]
    ['cities', 'races', 'classes', 'staff', 'keys', 'home_towns', 'heads of state']
    """
    phrase = _HEAD.match(word)
    if phrase is not None:
        return plural(phrase[1]) + phrase[2]
    head, separator, last = word.rpartition("_") if "_" in word else word.rpartition(" ")
    return head + separator + _plural_word(last)


def _plural_word(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in _SAME or word in _IRREGULAR.values() or (word.endswith("s") and stem(word) != word):
        return word
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return word[:-1] + "ies"
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    return word + "s"


def singular(word: str) -> str:
    """The singular of the last word, or of the one before a preposition.

    >>> singular("cities"), singular("home towns"), singular("people"), singular("movies"), singular("status")
    ('city', 'home town', 'person', 'movie', 'status')
    """
    phrase = _HEAD.match(word)
    if phrase is not None:
        return singular(phrase[1]) + phrase[2]
    head, separator, last = word.rpartition(" ")
    return head + separator + _PLURALS.get(last, last if last in _SAME else stem(last))


_PLURALS = {"movies": "movie", "movie": "movie", "cookies": "cookie", "species": "species", "courses": "course"}


Synonyms = Mapping[str, Sequence[str]]
LEAST_COUNT = 2  # a single occurrence is often a slip or a rewording of the whole phrase


def read_synonyms(pairs: Iterable[tuple[str, str]]) -> Synonyms:
    """Maps each old word to new phrases; all in lower case, and in the singular if both were plural."""
    counts = Counter(swap for old, new in pairs for swap in _swaps(_words(old), _words(new)))
    synonyms: dict[str, list[str]] = defaultdict(list)
    for (old, new), count in sorted(counts.items()):
        if count >= LEAST_COUNT and old != new:
            synonyms[old].append(new)
            synonyms[new].append(old)
    return {word: sorted(set(others)) for word, others in synonyms.items() if " " not in word}


def _words(question: str) -> list[str]:
    letters = "".join(letter if letter.isalnum() else " " for letter in question.casefold())
    return letters.split()


def _swaps(old: list[str], new: list[str]) -> Iterable[tuple[str, str]]:
    for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "replace" and b - a == 1 and d - c <= 2 and _telling(old[a:b] + new[c:d]):
            yield _singular(old[a], new[d - 1], new[c:d])


def _telling(words: list[str]) -> bool:
    return all(word.isalpha() and word not in STOP_WORDS and len(word) > 2 for word in words)


def _singular(old: str, last: str, new: list[str]) -> tuple[str, str]:
    if old.endswith("s") and last.endswith("s"):
        return _cut(old), " ".join([*new[:-1], _cut(last)])
    return old, " ".join(new)


def _cut(plural: str) -> str:
    if plural.endswith("ies"):
        return plural[:-3] + "y"
    return plural[:-2] if plural.endswith(("sses", "ches", "xes")) else plural.removesuffix("s")
