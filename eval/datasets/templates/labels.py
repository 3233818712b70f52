"""What people call the tables and columns of a schema, and which columns name, measure, date or classify a row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from eval.datasets.golds.databases import TrainingDatabase
from eval.datasets.variants.wording import plural, singular, words
from tools.linking.word_forms import word_set
from tools.schema import Column, ColumnRef, ForeignKey, Table
from tools.sql.scope import is_number, type_kind

NO_MEASURE = word_set("""
    id ids code number no num phone telephone zip postal postcode fax key uid isbn version latitude longitude lat lon lng
    black white hispanic asian amerindian multiracial house street room extension ssn index order sequence seq line
""")
DATES = word_set("date day time datetime timestamp year founded opened built born birthday dob")
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
    """Words for the names of a database. `said`: its authors' words for tables ("singer") and columns (("singer", "age"))."""

    database: TrainingDatabase
    said: Mapping[str | ColumnRef, str] = field(default_factory=dict)

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


def _key(child: Table, key: ForeignKey, parent: Table) -> Key:
    column, target = child.column(key.columns[0]), parent.column(key.ref_columns[0])
    return Key(child, column.name if column else key.columns[0], parent, target.name if target else key.ref_columns[0])


def _key_columns(table: Table) -> set[str]:
    foreign = {name for key in table.foreign_keys for name in key.columns}
    return foreign | {column.name for column in table.columns if column.primary_key}
