"""What people call the tables and columns of a schema, and which columns name, measure, date or classify a row.

A question made from a template, and what its author needs: words, values and rows of a database.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from sqlglot import exp

from eval.datasets.gold_databases import TrainingDatabase
from eval.datasets.gold_sql import sql_text
from tools.databases.database import Database
from tools.linking.word_forms import word_set
from tools.result import Limits, Result
from tools.schema import Column, ColumnRef, ForeignKey, Table
from tools.sql.scope import is_number, type_kind
from training.variants.mistakes import plural, singular, with_article, words

NO_MEASURE = word_set("""
    id ids code number no num phone telephone zip postal postcode fax key uid isbn version latitude longitude lat lon lng
    black white hispanic asian amerindian multiracial house street room extension ssn index order sequence seq line
""")
DATES = word_set("date day time datetime timestamp year founded opened built born birthday dob")
PRICE = word_set("price")
QUANTITY = word_set("quantity qty")
STOCK = word_set("stock inventory available remaining left")
_ADDED = QUANTITY | word_set("""
    amount amounts sales revenue profit profits budget payment payments attendance population fee fees expenses outstanding
    donation gross claimed settled paid
""")
_NEVER_ADDED = word_set(
    "average avg mean rate percent percentage per ratio share rank max min highest lowest price range"
)
_NOT_COUNTED = word_set("""
    sales earnings expenses costs profits fees amounts prices savings gross class status address series less plus gross
    losses taxes
""")
_CALENDAR = word_set("date datetime time timestamp year day of on in at the")
_NO_MOMENT = word_set("per expiry valid to from last first rank update")
_DONE = {
    word: word
    for word in ("made", "taken", "built", "sent", "held", "paid", "sold", "born", "shown", "given", "bought")
}
_DONE |= dict.fromkeys(("birth", "dob", "birthday", "bdate", "birthdate"), "born")
_DONE |= {
    "hire": "hired",
    "release": "released",
    "publication": "published",
    "opening": "opened",
    "purchase": "purchased",
}
_DONE |= {
    "registration": "registered",
    "create": "created",
    "creation": "created",
    "issue": "issued",
    "founding": "founded",
}
_DONE |= {"payment": "paid", "shipping": "shipped", "delivery": "delivered"}
_ACTIVE = {
    "start": "started",
    "started": "started",
    "starting": "started",
    "end": "ended",
    "ended": "ended",
    "died": "died",
}
_PLACED = word_set("order booking purchase reservation")
_NO_NOUN = word_set("in of to by from at on for with taken is has")
_PARTICIPLES = word_set("sold built held sent paid born shown taken given")
_OPAQUE = re.compile(r"(^|\s)(ref|reference|tbl|dim|fact)\s", re.I)


@dataclass(frozen=True, slots=True)
class Key:
    """A foreign key of one column: `child.column` refers to `parent.id`."""

    child: Table
    column: str
    parent: Table
    id: str


@dataclass(frozen=True, slots=True)
class Labels:
    """Words for the names of a database. `said`: its authors' words for tables ("singer") and columns (("singer", "age")).

    It also remembers what queries found in the database, which does not change: templates ask the same again and again.
    """

    database: TrainingDatabase
    said: Mapping[str | ColumnRef, str] = field(default_factory=dict)
    found: dict[str, Sequence[Sequence[object]]] = field(default_factory=dict, repr=False, compare=False)

    def one(self, table: Table) -> str:
        """A row of the table: `singer`, `head of department`."""
        label = self.said.get(table.name, words(table.name)).casefold()
        return singular(_OPAQUE.sub(" ", f" {label}").strip() or label)

    def is_noun(self, table: Table) -> bool:
        """Whether people can say "how many ..." of its name: not of `participates in` or `products booked`."""
        last = self.said.get(table.name, words(table.name)).casefold().split()[-1:]
        return not (_NO_NOUN & set(last) or last[0].endswith("ed") if last else True)

    def many(self, table: Table) -> str:
        """Rows of the table: `singers`."""
        return plural(self.one(table))

    def column(self, table: Table, column: str) -> str:
        """A column, without the table's name in front: of `singer.singer_name` it is `name`."""
        label = self.said.get((table.name, column), words(column)).casefold()
        rest = label.removeprefix(f"{self.one(table)} ")
        return rest if rest and not rest.isdigit() else label

    def name(self, table: Table) -> Column | None:
        """The column that names a row."""
        texts = [c for c in table.columns if self._kind(c) == "text" and c.name not in _key_columns(table)]
        person = any(self.column(table, c.name).endswith(("first name", "last name", "lname")) for c in texts)
        for end in ("name",) if person else ("name", "title", "description"):
            exact = [c for c in texts if self.column(table, c.name) == end]
            found = exact or [c for c in texts if self._is_name(self.column(table, c.name), end)]
            if found:
                return found[0]
        return None

    def _is_name(self, label: str, end: str) -> bool:
        return label.endswith(f" {end}") and not label.startswith(("first", "last", "middle", "family", "given"))

    def measures(self, table: Table) -> list[Column]:
        """Columns with numbers that can be compared and averaged."""
        return [
            column
            for column in table.columns
            if is_number(type_kind(column.type))
            and not column.primary_key
            and column.name not in _key_columns(table)
            and not NO_MEASURE & set(self.column(table, column.name).split())
            and not self.is_date(table, column)
        ]

    def amounts(self, table: Table) -> list[Column]:
        """Measures; where the schema knows no types, columns that are called like amounts."""
        bare = [c for c in self.texts(table) if not c.type and self._is_amount(table, c)]
        return [column for column in [*self.measures(table), *bare] if is_said(self.column(table, column.name))]

    def _is_amount(self, table: Table, column: Column) -> bool:
        said = self.column(table, column.name).split()
        named = said[-1] in PRICE | _ADDED | STOCK or said[0] in PRICE | QUANTITY
        return named and column != self.name(table) and not set(said) & NO_MEASURE

    def shown(self, table: Table) -> list[Column]:
        """The columns that tell a row from others: its name, or a first and a last name."""
        name = self.name(table)
        by_label = {self.column(table, column.name): column for column in table.columns}
        both = [by_label[label] for label in ("first name", "last name") if label in by_label]
        return [name] if name else both if len(both) == 2 else []

    def dates(self, table: Table) -> list[Column]:
        """Columns that say when."""
        return [
            column for column in table.columns if self.is_date(table, column) and column.name not in _key_columns(table)
        ]

    def is_date(self, table: Table, column: Column) -> bool:
        last = self.column(table, column.name).split()[-1:]
        return self._kind(column) in ("date", "time", "timestamp") or bool(DATES & set(last))

    def texts(self, table: Table) -> list[Column]:
        """Columns with words, other than keys and names."""
        name, keys = self.name(table), _key_columns(table)
        others = [c for c in table.columns if self._kind(c) == "text" and c != name and c.name not in keys]
        return [c for c in others if not self.is_date(table, c) and not self.column(table, c.name).startswith("other")]

    def _kind(self, column: Column) -> str:
        """Where no type is known, a text."""
        return (type_kind(column.type) or "") if column.type else "text"

    def references(self, *, named: bool = True) -> list[Key]:
        """The foreign keys of one column between two different tables that exist. `named`: both have names that are nouns."""
        schema, found = self.database.schema, list[Key]()
        for child in schema.tables:
            for key in child.foreign_keys:
                parent = schema.table(key.ref_table)
                if len(key.columns) == 1 and parent is not None and parent.name != child.name:
                    found.append(_key(child, key, parent))
        return [
            key for key in dict.fromkeys(found) if not named or (self.is_noun(key.child) and self.is_noun(key.parent))
        ]

    def other_side(self, key: Key) -> Table | None:
        """Where the child only links two tables: the other one."""
        own = [each for each in self.references(named=False) if each.child.name == key.child.name]
        others = [each.parent for each in own if each.parent.name != key.parent.name]
        plain = len(key.child.columns) - len(own)
        links = self.name(key.child) is None and (plain <= 2 or not self.is_noun(key.child))
        return others[0] if len(own) == 2 and len(others) == 1 and links else None


def participle(label: str) -> str:
    """What was done, if the label says when: `returned on` is `returned`, as `founded` is; empty if it does not.

    >>> participle("opened on"), participle("opening date"), participle("seed")
    ('opened', '', '')
    """
    done, _, when = label.partition(" ")
    past = (len(done) > 5 and done.endswith("ed")) or done in _PARTICIPLES
    return done if past and when in ("", "on", "at", "in", "date", "year") else ""


def is_said(label: str) -> bool:
    """Whether all its words can be words: not those of `g c` or `inn outs 2b`."""
    return all(len(word) > 2 or word in ("in", "of", "to", "by", "at", "on") for word in label.split())


def is_added(label: str) -> bool:
    """Whether sums of what is called so mean something: of sales and points, not of ages or prices."""
    said = set(label.split())
    return bool(said & _ADDED or counted(label)) and not said & _NEVER_ADDED


def counted(label: str) -> bool:
    """Whether it says what is counted: goals, bytes.

    >>> counted("goals"), counted("goals per game"), counted("sales"), counted("status")
    (True, False, False, False)
    """
    last = label.split()[-1]
    return last.endswith("s") and not last.endswith(("ss", "us")) and last not in _NOT_COUNTED and " in " not in label


def said_when(label: str, noun: str) -> dict[str, str] | None:
    """How people say when: orders that `were placed`, projects that `started`, visits (in 2019), loans `with a due date`.

    `noun` is a row of the table. None for a label that does not say when something happened.

    >>> said_when("date of birth", "singer")["post"], said_when("start date", "visit")["post"], said_when("valid to", "card")
    ('born', 'that started', None)
    """
    own = noun.split()
    said = label.split()
    rest = [word for word in said if word not in _CALENDAR and singular(word) not in own]
    words, last = {"label": label, "kind": "done", "done": "", "was": ""}, rest[-1] if rest else ""
    done = _DONE.get(last, last if len(last) > 5 and last.endswith("ed") else "")
    if set(said) & _NO_MOMENT or (len(rest) > 1 and (done or last in _ACTIVE)):
        return None
    if last in _ACTIVE:
        return {**words, "kind": "active", "verb": _ACTIVE[last], "post": f"that {_ACTIVE[last]}"}
    if last == "order" and not _PLACED & set(own[-1:]):
        done = "ordered"
    if done or ((not rest or last == "order") and _PLACED & set(own[-1:])):
        done = done or "placed"
        return {**words, "verb": f"were {done}", "post": done, "done": done, "was": "were"}
    if not rest:
        return {**words, "verb": "were there", "post": "", "was": "were there"}
    if is_label(label):
        a_label = with_article(label)
        return {**words, "kind": "label", "verb": f"have {a_label}", "post": f"with {a_label}"}
    return None


def is_label(label: str) -> bool:
    """Whether people would say it: "start date", but not "date claim settled"."""
    said = label.split()
    return said[-1] in ("date", "year", "birthday") or said[:2] in (["date", "of"], ["year", "of"])


def _key(child: Table, key: ForeignKey, parent: Table) -> Key:
    column, target = child.column(key.columns[0]), parent.column(key.ref_columns[0])
    return Key(child, column.name if column else key.columns[0], parent, target.name if target else key.ref_columns[0])


def _key_columns(table: Table) -> set[str]:
    foreign = {name for key in table.foreign_keys for name in key.columns}
    return foreign | {column.name for column in table.columns if column.primary_key}


LIMITS = Limits(deadline_s=3.0, max_rows=2_000)
LONGEST_VALUE = 30


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its SQL in SQLite's dialect. `below`: the result must have fewer rows than this table; "" if it may have
    any number. `may_be_empty`: the result need not say anything."""

    text: str
    sql: str
    below: str = ""
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class Author:
    """What templates are filled from; all choices are drawn from `rng`."""

    labels: Labels
    rng: Random

    @property
    def engine(self) -> Database:
        return self.labels.database.engine

    @property
    def tables(self) -> Sequence[Table]:
        """The tables whose rows can be spoken of."""
        return [table for table in self.labels.database.schema.tables if self.labels.is_noun(table)]

    def worded(self, wordings: Sequence[str], **parts: str) -> str:
        """One of the wordings, filled in, with its first letter capitalised."""
        text = self.rng.choice(wordings).format(**parts)
        for label in (parts.get("label", ""), parts.get("measure", ""), parts.get("other", "")):
            if label.endswith("s") and not label.endswith(("ss", "us")):
                text = text.replace(f"{label} is ", f"{label} are ")
        return text[:1].upper() + text[1:]

    def words(self, table: Table) -> dict[str, str]:
        """What wordings call a table's rows, and the column that names them, or a first and a last name."""
        name = self.labels.name(table)
        label = self.labels.column(table, name.name) if name else "name" if self.labels.shown(table) else ""
        names = plural(label) if label else ""
        return {"one": self.labels.one(table), "many": self.labels.many(table), "name": label, "names": names}

    def shown(self, table: Table, *, of_several: bool = False) -> str:
        """The items of a SELECT list that name its rows; "" if none do. of_several: with the table's name in front."""
        front = f"{q(table.name)}." if of_several else ""
        return ", ".join(f"{front}{q(column.name)}" for column in self.labels.shown(table))

    def some(self, meanings: Sequence[Callable[["Author"], Iterator[Asked]]], most: int) -> Iterator[Asked]:
        """At most so many questions of each meaning."""
        for meaning in meanings:
            found = list(meaning(self))
            yield from self.rng.sample(found, min(most, len(found)))

    def rows(self, sql: str) -> Sequence[Sequence[object]]:
        """The rows of a query; none if it fails."""
        found = self.labels.found
        if sql not in found:
            result = self.engine.execute(sql, LIMITS)
            found[sql] = result.rows if isinstance(result, Result) else ()
        return found[sql]

    def values(self, table: Table, column: str, most: int = 200) -> list[str | int | float]:
        """Short distinct values of a column, the most frequent first."""
        place = (
            f"{q(table.name)} WHERE {q(column)} IS NOT NULL GROUP BY {q(column)} ORDER BY COUNT(*) DESC, {q(column)}"
        )
        found = [row[0] for row in self.rows(f"SELECT {q(column)} FROM {place} LIMIT {most}")]
        return [v for v in found if isinstance(v, str | int | float) and 0 < len(str(v).strip()) <= LONGEST_VALUE]

    def classes(self, table: Table, column: str, most: int) -> list[str]:
        """All values of a column that has at most `most`, if they are short words; the most frequent first."""
        counted = self.rows(f"SELECT COUNT(DISTINCT {q(column)}) FROM {q(table.name)}")
        values = (
            [str(value) for value in self.values(table, column)]
            if counted and counted[0][0] in range(2, most + 1)
            else []
        )
        return values if len(values) > 1 and all(any(map(str.isalpha, value)) for value in values) else []

    def distinct_top(self, table: Table, column: str, direction: str, count: int = 1) -> bool:
        """Whether the first `count` rows in this order are well defined: no empty cells, and no tie at the end."""
        if self.rows(f"SELECT 1 FROM {q(table.name)} WHERE {q(column)} IS NULL OR {q(column)} = '' LIMIT 1"):
            return False
        rows = self.rows(f"SELECT {q(column)} FROM {q(table.name)} ORDER BY {q(column)} {direction} LIMIT {count + 1}")
        return len(rows) == count + 1 and rows[-1] != rows[-2]


def q(name: str) -> str:
    """A name in quotes."""
    return exp.to_identifier(name, quoted=True).sql("sqlite")


def literal(value: object) -> str:
    """A value as SQL writes it."""
    number = isinstance(value, int | float)
    return sql_text(exp.Literal.number(value) if number else exp.Literal.string(str(value)))


Template = Iterator[Asked]
