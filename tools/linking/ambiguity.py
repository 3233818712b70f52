"""Finds what a question leaves open, so that its asker can be asked back: no model, a few milliseconds.

Two things count: a value that columns with different meanings hold (Paris, a city or a person), and a word that names columns
of several tables (the age of students or of teachers) while nothing else that is said tells them apart.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tools.databases.database import Database
from tools.linking.link_schema import Link, link
from tools.linking.match_values import ValueMatch
from tools.linking.value_index import relation
from tools.linking.word_forms import STOP_WORDS, name_words, split, stem
from tools.result import Limits, QueryError
from tools.schema import ColumnRef, Schema
from tools.sql.joinable_columns import Joinable, joinable

SURE = 0.95  # score of a value that is said as its cell has it
CLOSE = 0.1  # a lead of one column's score over another's that decides nothing
MOST_MEANINGS = 4
_LOOK = Limits(deadline_s=1.0)


@dataclass(frozen=True, slots=True)
class Meaning:
    """`phrase`, as the question has it, may mean this column or, where there is a `value`, that cell of it."""

    phrase: str
    table: str
    column: str
    value: str | None = None

    @property
    def place(self) -> ColumnRef:
        return self.table, self.column

    @property
    def evidence(self) -> str:
        """What the asker says by choosing it, worded as BIRD's evidence is."""
        return f"{self.phrase} refers to {self.label}"

    @property
    def label(self) -> str:
        return f"{self.table}.{self.column}" + (f" = '{self.value}'" if self.value else "")


def find_unclear(
    database: Database, question: str, values: Sequence[ValueMatch], links: Sequence[Link]
) -> tuple[Meaning, ...]:
    """What the first unclear phrase may mean, likeliest first, values before names; empty where the question is clear.

    `values` and `links`: what `match_values` and `link` found for the question.
    """
    schema = database.schema()
    known = joinable(schema)
    return _unclear_value(database, question, values, known) or _unclear_name(schema, question, values, links, known)


def as_told(values: Sequence[ValueMatch], evidence: str) -> tuple[ValueMatch, ...]:
    """Without the meanings that `evidence` rules out because it is another meaning of the same phrase; each once, though
    question and evidence both say it."""
    chosen = {match.phrase: match for match in values if _meaning(match).evidence in evidence}
    return tuple(dict.fromkeys(match for match in values if chosen.get(match.phrase, match) == match))


def _unclear_value(
    database: Database, question: str, values: Sequence[ValueMatch], known: Joinable
) -> tuple[Meaning, ...]:
    """Columns that hold a value in rows of their own, and of which the question's other words name none better."""
    fit = _fit(link(database.schema(), question))
    for phrase in dict.fromkeys(match.phrase for match in values):
        sure = [_meaning(match) for match in values if match.phrase == phrase and match.score >= SURE]
        likely = _best(_named_beside(question, sure), fit)
        kept = _distinct(likely, lambda a, b: _equated(a, b, known) or _in_same_rows(database, a, b))
        if len(kept) > 1:
            return kept
    return ()


def _unclear_name(
    schema: Schema, question: str, values: Sequence[ValueMatch], links: Sequence[Link], known: Joinable
) -> tuple[Meaning, ...]:
    """Columns of one name. Nothing where a table is said, or a word that nothing here explains: it may mean a table."""
    said = [stem(word.key) for word in split(question)]
    named = _named_columns(schema, said)
    explained = {stem(word.key) for match in values for word in split(match.phrase)} | {*" ".join(named).split()}
    tables = any(_within(_stems(table.name), said) for table in schema.tables)
    if tables or any(word not in explained | STOP_WORDS and not word.isdigit() for word in said):
        return ()
    fit, told = _fit(links), Counter(one.table for meanings in named.values() for one in meanings)
    for meanings in named.values():
        most = max(told[one.table] for one in meanings)  # a table with another column of its own that is said
        likely = _best([one for one in meanings if told[one.table] == most], fit)
        kept = _distinct(likely, lambda a, b: _equated(a, b, known))
        if len(kept) > 1:
            return kept
    return ()


def _named_columns(schema: Schema, said: Sequence[str]) -> dict[str, list[Meaning]]:
    """The columns whose whole name is said, by that name."""
    named: dict[str, list[Meaning]] = defaultdict(list)
    for table in schema.tables:
        for column in table.columns:
            words = _stems(column.name)
            if _within(words, said):
                phrase = " ".join(words)
                named[phrase].append(Meaning(phrase, table.name, column.name))
    return named


def _meaning(match: ValueMatch) -> Meaning:
    return Meaning(match.phrase, match.table, match.column, match.value)


def _stems(name: str) -> list[str]:
    return [stem(word) for word in name_words(name)]


def _within(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether these words are said in a row."""
    return any(list(said[i : i + len(words)]) == list(words) for i in range(len(said) - len(words) + 1))


def _fit(links: Iterable[Link]) -> Mapping[ColumnRef, float]:
    """How well a column fits the question, together with its table."""
    scores = {(each.table, each.column or ""): each.score for each in links}
    return defaultdict(float, {place: score + scores.get((place[0], ""), 0.0) for place, score in scores.items()})


def _best(meanings: Sequence[Meaning], fit: Mapping[ColumnRef, float]) -> list[Meaning]:
    """Those that fit about as well as the best."""
    least = max((fit[one.place] for one in meanings), default=0.0) - CLOSE
    return sorted((one for one in meanings if fit[one.place] >= least), key=lambda one: -fit[one.place])


def _named_beside(question: str, meanings: Sequence[Meaning]) -> list[Meaning]:
    """Those named by the words next to the phrase ("the city of Paris"), if any are; else all."""
    if not meanings:
        return []
    start = question.find(meanings[0].phrase)
    words = [word for word in split(question) if word.key not in STOP_WORDS]
    before = [stem(word.key) for word in words if word.end <= start][-1:]
    after = [stem(word.key) for word in words if word.start >= start + len(meanings[0].phrase)][:1]
    named = [one for one in meanings if {*before, *after} & {*_stems(one.column), *_stems(one.table)}]
    return named or list(meanings)


def _distinct(meanings: Iterable[Meaning], same: Callable[[Meaning, Meaning], bool]) -> tuple[Meaning, ...]:
    """One of those that mean the same."""
    kept: list[Meaning] = []
    for one in meanings:
        if not any(same(one, other) for other in kept):
            kept.append(one)
    return tuple(kept[:MOST_MEANINGS])


def _equated(one: Meaning, other: Meaning, known: Joinable) -> bool:
    """The same column, or two that joins equate."""
    pair = (one.column.lower(), other.column.lower())
    return pair in known.between(one.table.lower(), other.table.lower())


def _in_same_rows(database: Database, one: Meaning, other: Meaning) -> bool:
    """Whether two columns of a table hold their values in the same rows: then it does not matter which is meant."""
    if one.table != other.table:
        return False
    holds = (exp.column(each.column, quoted=True).eq(exp.Literal.string(each.value or "")) for each in (one, other))
    a, b = (exp.case().when(each, "1").else_("0") for each in holds)  # never NULL
    query = exp.select("1").from_(relation(one.table)).where(a.neq(b)).limit(1)
    result = database.execute(query.sql(database.dialect), _LOOK)
    return not isinstance(result, QueryError) and not result.rows
