"""First questions about a database, and what is unclear in a question. No model, no query.

Two things count as unclear: a value that occurs in columns with different meanings (Paris, a city or a person), and a word that
names columns of several tables (the age of students or of teachers) while nothing else in the question distinguishes them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlglot import exp

from tools.databases.database import Database
from tools.example.build import FILE_NAME
from tools.linking.link_schema import Link, link
from tools.linking.match_values import ValueMatch, relation
from tools.linking.word_forms import STOP_WORDS, name_words, split, stem
from tools.result import Limits, QueryError
from tools.schema import Column, ColumnRef, Schema, Table, derived
from tools.sql.join_graph import Joinable, joinable
from tools.sql.scope import parse_quietly


@dataclass(frozen=True, slots=True)
class ExampleQuestion:
    """A question and DuckDB SQL that answers it."""

    question: str
    sql: str


STARTERS = (
    ExampleQuestion(
        "Which store has the most orders?",
        "SELECT stores.name, COUNT(*) AS orders FROM orders JOIN stores ON orders.store_id = stores.store_id "
        "GROUP BY stores.store_id, stores.name ORDER BY orders DESC LIMIT 1",
    ),
    ExampleQuestion(
        "Which five albums have the most reviews?",
        "SELECT albums.title, COUNT(*) AS reviews FROM reviews JOIN albums ON reviews.album_id = albums.album_id "
        "GROUP BY albums.album_id, albums.title ORDER BY reviews DESC LIMIT 5",
    ),
    ExampleQuestion(
        "How many customers live in each country?",
        "SELECT country, COUNT(*) AS customers FROM customers GROUP BY country",
    ),
    ExampleQuestion(
        "Which artists come from Norway?",
        "SELECT name FROM artists WHERE country = 'Norway'",
    ),
)
"""What the chat offers to begin with; the shipped model answers each of them."""

_NUMBER = re.compile(r"INT|DEC|NUM|DOUBLE|FLOAT|REAL", re.IGNORECASE)
_NAMES = ("name", "title", "label")


def starters(schema: Schema, most: int = 4) -> list[str]:
    """At most `most` different questions, each about another table if there are enough.

    A table with a column to group by and a number has four questions:

    >>> genre = Column("genre", "TEXT", samples=("Rock", "Jazz"))
    >>> albums = Table("albums", (Column("title", "TEXT"), genre, Column("list_price", "REAL")))
    >>> for question in starters(Schema((albums,), "sqlite")):
    ...     print(question)
    How many albums are there?
    How many albums are there for each genre?
    What is the average list price of the albums?
    Which 5 albums have the highest list price?
    """
    tables = sorted(schema.tables, key=lambda table: -len(table.columns))
    rounds = [list(_questions(table)) for table in tables]
    longest = max(map(len, rounds), default=0)
    # The first question of the first table, the second of the second, and so on: no two alike.
    order = [rounds[i][(i + turn) % len(rounds[i])] for turn in range(longest) for i in range(len(rounds)) if rounds[i]]
    return list(dict.fromkeys(order))[:most]


def first_questions(schema: Schema, name: str, most: int = 4) -> list[str]:
    """What to ask first: written questions for the bundled database, by its name and tables, others made from the schema."""
    is_bundled = name == Path(FILE_NAME).stem
    written = [each.question for each in STARTERS if is_bundled and _can_be_asked(each, schema)]
    return written[:most] or starters(schema, most)


def _can_be_asked(starter: ExampleQuestion, schema: Schema) -> bool:
    """Whether all that its SQL reads is there: tables and columns may be hidden."""
    tables = {table.name for table in schema.tables}
    names = tables | {column.name for table in schema.tables for column in table.columns}
    (tree,) = parse_quietly(starter.sql, "duckdb")
    read = {each.name for each in tree.find_all(exp.Table)}
    return read <= tables and {each.name for each in tree.find_all(exp.Column)} <= names


def _questions(table: Table) -> Iterator[str]:
    name = _things(table.name)
    yield f"How many {name} are there?"
    group = next((column for column in table.columns if _groups(table, column)), None)
    if group:
        yield f"How many {name} are there for each {_words(group.name)}?"
    number = _measure(table)
    if number:
        yield f"What is the average {_words(number.name)} of the {name}?"
        label = next((column for column in table.columns if _is_label(column)), None)
        if label:
            yield f"Which 5 {name} have the highest {_words(number.name)}?"


def _keys(table: Table) -> set[str]:
    foreign = {name.casefold() for key in table.foreign_keys for name in key.columns}
    return foreign | {column.name.casefold() for column in table.columns if column.primary_key}


def _groups(table: Table, column: Column) -> bool:
    short = bool(column.samples) and max(map(len, column.samples)) <= 16
    is_text = re.search("CHAR|TEXT|STRING", column.type, re.IGNORECASE) is not None
    return is_text and short and not _is_label(column) and column.name.casefold() not in _keys(table)


def _measure(table: Table) -> Column | None:
    keys = _keys(table)
    numbers = [c for c in table.columns if _NUMBER.search(c.type) and c.name.casefold() not in keys]
    return next((c for c in numbers if not re.search(r"(^|_)(id|year|code|no|number)$", c.name.casefold())), None)


def _is_label(column: Column) -> bool:
    return any(word in column.name.casefold() for word in _NAMES)


def _words(name: str) -> str:
    return " ".join(re.sub(r"\W+|_", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).lower().split()) or name


def _things(name: str) -> str:
    """What the rows of a table are, in the plural; "rows of sales q3" where its name is no plural.

    >>> _things("order_lines"), _things("People"), _things("evil"), _things("sales_q3")
    ('order lines', 'people', 'rows of evil', 'rows of sales q3')
    """
    own = _words(name)
    last = own.split()[-1]
    return own if stem(last) != last else f"rows of {own}"


SURE = 0.95  # score of a value that the question writes as its cell does
CLOSE = 0.1  # a lead of one column's score over another's that is too small to decide
MOST_MEANINGS = 4
_LOOK = Limits(deadline_s=1.0)


@dataclass(frozen=True, slots=True)
class Meaning:
    """`phrase`, as the question has it, may mean this column or, if there is a `value`, that cell of it."""

    phrase: str
    table: str
    column: str
    value: str | None = None

    @property
    def place(self) -> ColumnRef:
        return self.table, self.column

    @property
    def evidence(self) -> str:
        """What the asker says by choosing it, in the wording of BIRD's evidence."""
        return f"{self.phrase} refers to {self.label}"

    @property
    def label(self) -> str:
        return f"{self.table}.{self.column}" + (f" = '{self.value}'" if self.value else "")


def find_unclear(
    database: Database, question: str, values: Sequence[ValueMatch], links: Sequence[Link]
) -> tuple[Meaning, ...]:
    """What the first unclear phrase may mean, likeliest first, values before names; empty if the question is clear.

    `values` and `links`: what `match_values` and `link` found for the question.
    """
    schema = database.schema()
    known = joinable(schema)
    return _unclear_value(database, question, values, known) or _unclear_name(schema, question, values, links, known)


def as_told(values: Sequence[ValueMatch], evidence: str) -> tuple[ValueMatch, ...]:
    """The values without those that `evidence` rules out, because it names another meaning of the same phrase. Each comes once,
    even if both question and evidence contain it."""
    chosen = {match.phrase: match for match in values if _meaning(match).evidence in evidence}
    return tuple(dict.fromkeys(match for match in values if chosen.get(match.phrase, match) == match))


def _unclear_value(
    database: Database, question: str, values: Sequence[ValueMatch], known: Joinable
) -> tuple[Meaning, ...]:
    """Columns that hold a value in different rows, and none of which the question's other words name better than the rest."""
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
    """Columns of the same name. None if the question names a table, or has an unexplained word, which may mean one."""
    said = [stem(word.key) for word in split(question)]
    named = _named_columns(schema, said)
    explained = {stem(word.key) for match in values for word in split(match.phrase)} | {*" ".join(named).split()}
    tables = any(_within(_stems(table.name), said) for table in schema.tables)
    if tables or any(word not in explained | STOP_WORDS and not word.isdigit() for word in said):
        return ()
    fit, counts = _fit(links), Counter(one.table for meanings in named.values() for one in meanings)
    for meanings in named.values():
        most = max(counts[one.table] for one in meanings)  # more for a table of which another column is named, too
        likely = _best([one for one in meanings if counts[one.table] == most], fit)
        kept = _distinct(likely, lambda a, b: _equated(a, b, known))
        if len(kept) > 1:
            return kept
    return ()


def _named_columns(schema: Schema, said: Sequence[str]) -> dict[str, list[Meaning]]:
    """The columns whose whole name the question contains, by that name."""
    named: dict[str, list[Meaning]] = defaultdict(list)
    for words, places in _columns_by_words(schema).items():
        if _within(words, said):
            phrase = " ".join(words)
            named[phrase] += [Meaning(phrase, *place) for place in places]
    return named


@derived
def _columns_by_words(schema: Schema) -> dict[tuple[str, ...], list[ColumnRef]]:
    found: dict[tuple[str, ...], list[ColumnRef]] = defaultdict(list)
    for table in schema.tables:
        for column in table.columns:
            found[tuple(_stems(column.name))].append((table.name, column.name))
    return found


def _meaning(match: ValueMatch) -> Meaning:
    return Meaning(match.phrase, match.table, match.column, match.value)


def _stems(name: str) -> list[str]:
    return [stem(word) for word in name_words(name)]


def _within(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether the question contains these words in a row."""
    if not {*words} <= {*said}:
        return False
    return any(list(said[i : i + len(words)]) == list(words) for i in range(len(said) - len(words) + 1))


def _fit(links: Iterable[Link]) -> Mapping[ColumnRef, float]:
    """How well a column fits the question, together with its table."""
    scores = {(each.table, each.column or ""): each.score for each in links}
    return defaultdict(float, {place: score + scores.get((place[0], ""), 0.0) for place, score in scores.items()})


def _best(meanings: Sequence[Meaning], fit: Mapping[ColumnRef, float]) -> list[Meaning]:
    """The meanings that fit about as well as the best."""
    least = max((fit[one.place] for one in meanings), default=0.0) - CLOSE
    return sorted((one for one in meanings if fit[one.place] >= least), key=lambda one: -fit[one.place])


def _named_beside(question: str, meanings: Sequence[Meaning]) -> list[Meaning]:
    """The meanings that the words next to the phrase name ("the city of Paris"), if there are any; otherwise all."""
    if not meanings:
        return []
    start = question.find(meanings[0].phrase)
    words = [word for word in split(question) if word.key not in STOP_WORDS]
    before = [stem(word.key) for word in words if word.end <= start][-1:]
    after = [stem(word.key) for word in words if word.start >= start + len(meanings[0].phrase)][:1]
    named = [one for one in meanings if {*before, *after} & {*_stems(one.column), *_stems(one.table)}]
    return named or list(meanings)


def _distinct(meanings: Iterable[Meaning], same: Callable[[Meaning, Meaning], bool]) -> tuple[Meaning, ...]:
    """The meanings without those that mean the same as an earlier one."""
    kept: list[Meaning] = []
    for one in meanings:
        if not any(same(one, other) for other in kept):
            kept.append(one)
    return tuple(kept[:MOST_MEANINGS])


def _equated(one: Meaning, other: Meaning, known: Joinable) -> bool:
    """Whether both are the same column, or columns that a join may equate."""
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
