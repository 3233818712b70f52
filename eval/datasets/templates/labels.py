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
        name = self.name(table)
        keys = _key_columns(table)
        return [
            c
            for c in table.columns
            if self._kind(c) == "text" and c != name and c.name not in keys and not self.is_date(table, c)
        ]

    def _kind(self, column: Column) -> str:
        return type_kind(column.type) or ""

    def references(self) -> list[Key]:
        """The foreign keys of one column between two different tables that exist."""
        schema, found = self.database.schema, list[Key]()
        for child in schema.tables:
            for key in child.foreign_keys:
                parent = schema.table(key.ref_table)
                if len(key.columns) == 1 and parent is not None and parent.name != child.name:
                    found.append(_key(child, key, parent))
        return list(dict.fromkeys(found))

    def other_side(self, key: Key) -> Table | None:
        """Where the child only links two tables: the other one."""
        own = [each for each in self.references() if each.child.name == key.child.name]
        others = [each.parent for each in own if each.parent.name != key.parent.name]
        plain = len(key.child.columns) - len(own)
        return others[0] if len(own) == 2 and len(others) == 1 and plain <= 2 and self.name(key.child) is None else None


def _key(child: Table, key: ForeignKey, parent: Table) -> Key:
    column, target = child.column(key.columns[0]), parent.column(key.ref_columns[0])
    return Key(child, column.name if column else key.columns[0], parent, target.name if target else key.ref_columns[0])


def _key_columns(table: Table) -> set[str]:
    foreign = {name for key in table.foreign_keys for name in key.columns}
    return foreign | {column.name for column in table.columns if column.primary_key}
