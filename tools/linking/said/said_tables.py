"""Finds the tables that a question surely needs: what it counts for each of something, and what it says both of."""

from collections.abc import Iterator, Mapping, Sequence

from tools.linking.word_forms import name_words, split, stem, word_set
from tools.schema import Schema

_COUNTING = (("how", "many"), ("number", "of"))
_PER = word_set("per each every by")
_LONGEST = 3  # words of a table's name

Names = frozenset[str]


def said_tables(schema: Schema, question: str) -> tuple[Names, ...]:
    """For each table that must be used: its name in lower case and, where its rows are counted for each of something, those of
    the tables that refer to it, which may have a row for each of its rows.

    >>> from tools.schema import Column, ForeignKey, Table
    >>> genre = Table("genres", (Column("id", "INTEGER", True), Column("family", "TEXT")))
    >>> album = Table("albums", (Column("genre", "INTEGER"),), (ForeignKey(("genre",), "genres", ("id",)),))
    >>> said_tables(Schema((genre, album), "sqlite"), "Show the number of albums per genre family.")
    (frozenset({'albums'}),)
    """
    words = [word.key for word in split(question)]
    known = {tuple(map(stem, name_words(table.name))): table.name.lower() for table in schema.tables}
    return tuple(dict.fromkeys((*_counted(schema, words, known), *_both(words, known))))


def _counted(schema: Schema, words: Sequence[str], known: Mapping[tuple[str, ...], str]) -> Iterator[Names]:
    """What is counted, if that is for each of something."""
    for at in range(2, len(words)):
        name, size = _table_at(words, at, known)
        if name and tuple(words[at - 2 : at]) in _COUNTING and not _PER.isdisjoint(words[at + size :]):
            referring = (t for t in schema.tables if any(key.ref_table.lower() == name for key in t.foreign_keys))
            yield frozenset({name, *(table.name.lower() for table in referring)})


def _both(words: Sequence[str], known: Mapping[tuple[str, ...], str]) -> Iterator[Names]:
    """The tables of "both artists and stores"."""
    for at in (number + 1 for number, word in enumerate(words) if word == "both"):
        one, size = _table_at(words, at, known)
        other, _ = _table_at(words, at + size + 1, known)
        if one and other and words[at + size] == "and":
            yield from (frozenset({one}), frozenset({other}))


def _table_at(words: Sequence[str], at: int, known: Mapping[tuple[str, ...], str]) -> tuple[str, int]:
    """The table whose name begins at a word, and the number of its words; the longest name counts."""
    for size in range(_LONGEST, 0, -1):
        if name := known.get(tuple(map(stem, words[at : at + size]))):
            return name, size
    return "", 0
