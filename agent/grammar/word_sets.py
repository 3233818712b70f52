"""Words that a statement may contain: reserved words, and sets of names in every spelling that the dialect allows.

Spellings are compared in lower case. A quoted spelling is one word, quotes included.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache

OTHER = "\x80"  # stands for each byte above 127 in what lexer and vocabulary compare


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SQLITE_RESERVED = _words("""
    add all alter and as autoincrement between case check collate commit constraint create cross current_date
    current_time current_timestamp default deferrable delete distinct drop else escape except exists foreign
    from full group having if in index indexed inner insert intersect into is isnull join left limit natural not
    notnull null on or order outer over primary references right select set table then to transaction union
    unique update using values when where window with
""")
_DUCKDB_RESERVED = _words("""
    all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast
    check collate collation column concurrently constraint create cross default deferrable desc describe
    distinct do else end except false fetch for foreign freeze from full glob group having ilike in initially
    inner intersect into is isnull join lambda lateral leading left like limit natural not notnull null offset
    on only or order outer overlaps pivot pivot_longer pivot_wider placing positional primary qualify references
    returning right select semi show similar some summarize symmetric table tablesample then to trailing true
    union unique unpack unpivot using variadic verbose when where window with
""")
_RESERVED = {"sqlite": _SQLITE_RESERVED, "duckdb": _DUCKDB_RESERVED}
# SQLite accepts these as names, but a name made up by a model should not be one of them.
_UNWISE = _words("asc by cast desc end false glob ilike like nulls offset true try_cast filter")
_BRACKETS = {"sqlite": (('"', '"'), ("`", "`"), ("[", "]")), "duckdb": (('"', '"'),)}


def makes_alias(word: str, dialect: str) -> bool:
    """Whether this lower-case word may be a new name."""
    return word not in _RESERVED[dialect] and word not in _UNWISE


class WordSet:
    """Words that are allowed at one place. Compared by identity: the functions that make them cache one object per content."""

    def __init__(self, words: dict[str, tuple[str, str]]) -> None:
        """`words`: lower-case spelling -> (key, spelling as it is written)."""
        self.words = words
        self.firsts = frozenset(word[0] for word in words)
        self._sorted = sorted(words)

    def starts(self, prefix: str) -> bool:
        """Whether some word begins with `prefix`."""
        position = bisect_left(self._sorted, prefix)
        return position < len(self._sorted) and self._sorted[position].startswith(prefix)

    def beginning(self, prefix: str) -> Iterator[str]:
        """The words that begin with `prefix`, sorted."""
        for position in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[position].startswith(prefix):
                return
            yield self._sorted[position]


@lru_cache(maxsize=4096)
def keyword_set(words: frozenset[str]) -> WordSet:
    """Keywords, written in capitals."""
    return WordSet({word: (word, word.upper()) for word in words})


@lru_cache(maxsize=4096)
def name_set(names: frozenset[str], dialect: str) -> WordSet:
    """Names as the schema writes them, in every spelling of the dialect; keys are the names in lower case."""
    return WordSet(
        {lowered(written): (name.lower(), written) for name in names for written in _spellings(name, dialect)}
    )


@lru_cache(maxsize=4096)
def plain_set(words: frozenset[str]) -> WordSet:
    """Words that are never quoted, such as functions and positions."""
    return WordSet({word.lower(): (word.lower(), word) for word in words})


def lowered(text: str) -> str:
    """The form that lexer and vocabulary compare: lower case, with `OTHER` for each byte above 127."""
    if text.isascii():
        return text.lower()
    return "".join(c.lower() if c.isascii() else OTHER * len(c.encode()) for c in text)


def is_plain(name: str, dialect: str) -> bool:
    """Whether a name needs no quotes."""
    return name.isascii() and name.isidentifier() and name.lower() not in _RESERVED[dialect]


def _spellings(name: str, dialect: str) -> Iterable[str]:
    if is_plain(name, dialect):
        yield name
    for opening, closing in _BRACKETS[dialect]:
        yield opening + name.replace(closing, closing * 2) + closing
