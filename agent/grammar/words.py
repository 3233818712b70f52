"""Words that a statement may contain: reserved words, names and functions.

Names are sets, in every spelling that the dialect allows. Spellings are compared in lower case; a quoted spelling is one word,
quotes included. The functions, with their numbers of arguments, are those that questions about data need: a subset of
`tools/guard/allowed.py` and of the functions for which sqlglot has classes, so all of them pass the guard.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from agent.prompts.slots import NAME_CHARACTERS, one_line

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
    """As the prompt shows it, in one line; `tools.sql.from_sqlite` finds the name again."""
    if is_plain(name, dialect):
        yield name
    shown = one_line(name, NAME_CHARACTERS)
    for opening, closing in _BRACKETS[dialect]:
        yield opening + shown.replace(closing, closing * 2) + closing


Kind = Literal["aggregate", "scalar", "window"]
ANY = 9


@dataclass(frozen=True, slots=True)
class Function:
    """A function and its least and greatest number of arguments."""

    name: str
    kind: Kind
    least: int
    most: int


def _functions(kind: Kind, text: str) -> dict[str, Function]:
    """Parse entries `name/least` or `name/least-most`, where `+` means any number."""
    found = {}
    for entry in text.split():
        name, _, arity = entry.partition("/")
        least, _, most = arity.partition("-")
        found[name] = Function(name, kind, int(least), ANY if most == "+" else int(most or least))
    return found


_COMMON = {
    **_functions("aggregate", "count/1 sum/1 avg/1 min/1 max/1 group_concat/1-2"),
    **_functions(
        "scalar",
        """abs/1 round/1-2 length/1 lower/1 upper/1 trim/1-2 ltrim/1-2 rtrim/1-2 substr/2-3 substring/2-3 replace/3 instr/2
        coalesce/2-+ ifnull/2 nullif/2 sign/1""",
    ),
    **_functions(
        "window",
        """row_number/0 rank/0 dense_rank/0 percent_rank/0 cume_dist/0 ntile/1 lag/1-3 lead/1-3 first_value/1
        last_value/1""",
    ),
}
_SQLITE = {
    **_COMMON,
    **_functions("aggregate", "total/1"),
    **_functions("scalar", "iif/3 strftime/2-4 date/0-4 time/0-4 datetime/0-4 julianday/0-4 typeof/1 unicode/1"),
}
_DUCKDB = {
    **_COMMON,
    **_functions(
        "aggregate",
        """any_value/1 first/1 last/1 arg_max/2 arg_min/2 max_by/2 min_by/2 median/1 mode/1 stddev/1 variance/1 bool_and/1
        bool_or/1 string_agg/2 list/1 quantile_cont/2 approx_count_distinct/1""",
    ),
    **_functions(
        "scalar",
        """strftime/2 strptime/2 date_part/2 date_trunc/2 date_diff/3 year/1 month/1 day/1 hour/1 minute/1 quarter/1
        week/1 dayofweek/1 contains/2 starts_with/2 ends_with/2 concat/1-+ concat_ws/2-+ left/2 right/2 greatest/2-+
        least/2-+ floor/1 ceil/1 sqrt/1 power/2 ln/1 mod/2 regexp_matches/2 regexp_replace/3-4 split_part/3 make_date/3
        typeof/1 strpos/2 lpad/3 rpad/3 reverse/1 epoch/1 julian/1 now/0 today/0""",
    ),
}
FUNCTIONS = {"sqlite": _SQLITE, "duckdb": _DUCKDB}
DATE_FUNCTIONS = _words("strftime date time datetime julianday")  # of SQLite, which read a date and its modifiers
WITHIN_DATES = DATE_FUNCTIONS | _words(
    "substr substring replace trim coalesce ifnull nullif min max"
)  # what makes a date
DATE_FORMATS = _words("%Y %m %d %Y-%m %m-%d %Y-%m-%d %w %W %Y-%W %j %H %H:%M %M %H:%M:%S %s")
