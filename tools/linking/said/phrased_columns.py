"""Finds the columns of one word that a question names in a phrase that is about columns: "the average price", "grade 5".

A word alone may be said of anything; beside such words it is a column. `counted_columns` are what "how many" asks the sum
of: "how many beds" means the column of that name, where it holds numbers, and not the rows.
"""

from collections.abc import Iterator, Sequence

from tools.linking.match_values import ValueMatch
from tools.linking.said.said_columns import keys_of, words_of_values
from tools.linking.word_forms import STOP_WORDS, Word, name_stems, name_words, split, stem, word_set
from tools.schema import ColumnRef, Schema
from tools.sql.scope import is_number, type_kind

_BEFORE = word_set("""
    average mean maximum minimum highest lowest largest smallest biggest greatest longest shortest
    each every per different distinct unique whose which what
""")
_COMPARING = word_set("""
    above below over under higher lower greater less larger smaller bigger more fewer than equal at least most between
    after before is of was to
""")
_EVERYWHERE = word_set("name id")
_RANKED = word_set("age class day grade level month position rank year")  # columns whose numbers add up to nothing
_PIECES = word_set("copy piece unit")  # what a quantity counts, where nothing is called so
_COUNTING = (("how", "many"), ("number", "of"), ("amount", "of"))
_RANKING = ("most", "fewest")
_ALIKE = 4  # letters with which two words begin that may mean the same, such as "credits" and `cred`

Places = frozenset[ColumnRef]


def phrased_columns(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> tuple[Places, ...]:
    """For each name of one word in a phrase about columns: the columns that are called so, in lower case.

    Here the grade is compared with a number, and names that stand beside each other in a list are two columns:

    >>> from tools.schema import Column, Table
    >>> pupil = Table("pupil", (Column("height", "REAL"), Column("grade", "INTEGER"), Column("town", "TEXT")))
    >>> found = phrased_columns(Schema((pupil,), "sqlite"), "Show the height and town of the pupils in grade 5.")
    >>> [sorted(places) for places in found]
    [[('pupil', 'height')], [('pupil', 'town')], [('pupil', 'grade')]]
    >>> phrased_columns(Schema((pupil,), "sqlite"), "Who has good grades in town?")
    ()
    """
    words, taken = split(question), words_of_values(question, values)
    names = {word: places for word, places in _names(schema).items() if places.isdisjoint(keys_of(schema))}
    every = {stem(word) for table in schema.tables for column in table.columns for word in name_words(column.name)}
    named = [number for number, word in enumerate(words) if stem(word.key) in every and number not in taken]
    said = (number for number in named if stem(words[number].key) in names)
    phrased = (number for number in said if _is_phrased(question, words, number, named))
    return tuple(dict.fromkeys(names[stem(words[number].key)] for number in phrased))


def counted_columns(schema: Schema, question: str, values: Sequence[ValueMatch] = ()) -> tuple[Places, ...]:
    """For each name of one word that "how many", "the number of" or "the most" asks for: the columns of numbers that are called
    so. After "the most" no other column may be called alike.

    >>> from tools.schema import Column, Table
    >>> room = Table("room", (Column("beds", "INTEGER"), Column("decor", "TEXT")))
    >>> [sorted(places) for places in counted_columns(Schema((room,), "sqlite"), "How many beds are there?")]
    [[('room', 'beds')]]
    """
    keys, taken = keys_of(schema), words_of_values(question, values)
    numbers: dict[str, set[ColumnRef]] = {}
    for table in schema.tables:
        for column in table.columns:
            place, name = (table.name.lower(), column.name.lower()), name_words(column.name)
            adds_up = is_number(type_kind(column.type)) and _RANKED.isdisjoint(name)
            if len(name) == 1 and adds_up and place not in keys:
                numbers.setdefault(stem(name[0]), set()).add(place)
    if "quantity" in numbers:
        numbers = dict.fromkeys(_PIECES - _words_of_names(schema), numbers["quantity"]) | numbers
    said = [stem(word.key) for word in split(question)]
    places = [n for n in range(2, len(said)) if said[n] in numbers and n not in taken]
    asked = [said[n] for n in places if tuple(said[n - 2 : n]) in _COUNTING]
    asked += [said[n] for n in places if said[n - 1] in _RANKING and _is_only(said[n], schema)]
    return tuple(dict.fromkeys(frozenset(numbers[name]) for name in asked))


def _is_only(name: str, schema: Schema) -> bool:
    """Whether no column's name has the word, or one that begins like it, beside others."""
    columns = [name_words(column.name) for table in schema.tables for column in table.columns]
    return not any(word[:_ALIKE] == name[:_ALIKE] for words in columns if len(words) > 1 for word in words)


def _words_of_names(schema: Schema) -> frozenset[str]:
    """The stems of all words in names of the schema."""
    names = [name for table in schema.tables for name in (table.name, *(column.name for column in table.columns))]
    return frozenset[str]().union(*map(name_stems, names))


def _names(schema: Schema) -> dict[str, Places]:
    """The columns whose names are one word, by its stem: no word of a table's name, nor of a longer column's."""
    of_tables = frozenset[str]().union(*(name_stems(table.name) for table in schema.tables))
    columns = [((t.name.lower(), c.name.lower()), name_words(c.name)) for t in schema.tables for c in t.columns]
    of_longer = {stem(word) for _, name in columns if len(name) > 1 for word in name}
    found: dict[str, set[ColumnRef]] = {}
    for place, name in columns:
        if len(name) == 1:
            found.setdefault(stem(name[0]), set()).add(place)
    return {name: frozenset(found[name]) for name in found.keys() - of_tables - of_longer - _EVERYWHERE}


def _is_phrased(question: str, words: Sequence[Word], at: int, named: Sequence[int]) -> bool:
    """Whether the word stands where a column stands: beside words that go with columns, or in a list with `named` ones."""
    if _is_compared(words, at) or (at + 1 < len(words) and words[at + 1].key == "of"):
        return True
    if any(
        abs(at - other) <= 2 and _are_listed(question, words, *sorted((at, other))) for other in named if other != at
    ):
        return True
    return _ends_phrase(question, words, at) and at > 0 and words[at - 1].key in _BEFORE


def _is_compared(words: Sequence[Word], at: int) -> bool:
    """Whether a number follows, at once or after words that compare."""
    rest: Iterator[str] = (word.key for word in words[at + 1 :])
    following = next((key for key in rest if key not in _COMPARING), "")
    return following[:1].isdigit()


def _ends_phrase(question: str, words: Sequence[Word], at: int) -> bool:
    """Whether the word is the last of its phrase: `population` is not in "population density"."""
    if at + 1 == len(words) or question[words[at].end : words[at + 1].start].strip():
        return True
    return words[at + 1].key in STOP_WORDS


def _are_listed(question: str, words: Sequence[Word], one: int, other: int) -> bool:
    """Whether two words are joined by a comma or by "and", and the list ends with its phrase."""
    between = [word.key for word in words[one + 1 : other]]
    comma = not between and "," in question[words[one].end : words[other].start]
    return (comma or between == ["and"]) and _ends_phrase(question, words, other)
