"""Renames schemas and queries: a mapping of names is applied scope by scope, and can be undone.

Draws schemas that never repeat: tables shuffled, dropped and added, columns dropped and added, names reworded and
restyled.

All draws use a given random generator, so that a seed determines every schema. `rename` renames the SQL.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from sqlglot import exp

from agent.grammar.words import is_plain
from eval.datasets.gold_sql import found, identifier, is_output, place_of, real_tables
from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import name_words
from tools.schema import ColumnRef, Schema, Table
from tools.sql.scope import first_select
from training.variants.mistakes import Synonyms


@dataclass(frozen=True, slots=True)
class Naming:
    """New names of tables by old name, and of columns by (old table, old column). Everything else keeps its name."""

    tables: Mapping[str, str]
    columns: Mapping[tuple[str, str], str]

    def table(self, name: str) -> str:
        return self.tables.get(name, name)

    def column(self, table: str, name: str) -> str:
        return self.columns.get((table, name), name)

    def undone(self) -> "Naming":
        """The inverse mapping."""
        columns = {(self.table(table), new): old for (table, old), new in self.columns.items()}
        return Naming({new: old for old, new in self.tables.items()}, columns)


def rename_schema(schema: Schema, naming: Naming) -> Schema:
    """The schema under its new names."""
    return replace(schema, tables=tuple(_renamed(table, naming) for table in schema.tables))


def _renamed(table: Table, naming: Naming) -> Table:
    columns = tuple(replace(column, name=naming.column(table.name, column.name)) for column in table.columns)
    keys = tuple(
        replace(
            key,
            columns=tuple(naming.column(table.name, name) for name in key.columns),
            ref_table=naming.table(key.ref_table),
            ref_columns=tuple(naming.column(key.ref_table, name) for name in key.ref_columns),
        )
        for key in table.foreign_keys
    )
    return replace(table, name=naming.table(table.name), columns=columns, foreign_keys=keys)


def rename_values(values: Sequence[ValueMatch], naming: Naming) -> tuple[ValueMatch, ...]:
    """The matches under the new names."""
    return tuple(replace(v, table=naming.table(v.table), column=naming.column(v.table, v.column)) for v in values)


def rename_sql(tree: exp.Query, schema: Schema, naming: Naming) -> exp.Query:
    """A copy of the query under the new names; `schema` has the old ones."""
    copy = tree.copy()
    columns = [(column, *_new_names(column, schema, naming)) for column in copy.find_all(exp.Column)]
    tables = [(table, naming.table(name)) for table, name in real_tables(copy, schema)]
    for column, name, qualifier in columns:
        if name:
            column.set("this", identifier(name))
        if qualifier:
            column.set("table", identifier(qualifier))
    for table, name in tables:
        table.set("this", identifier(name))
    return copy


def _new_names(column: exp.Column, schema: Schema, naming: Naming) -> tuple[str, str]:
    """The column's new name and qualifier; an empty one stays empty."""
    home = None if is_output(column) else found(column, schema)
    if home is None:
        return "", ""
    table = home[1].table
    called_by_name = table is not None and column.table.casefold() == table.name.casefold()
    qualifier = naming.table(table.name) if table is not None and called_by_name else ""
    place = _origin(column, schema)
    return naming.column(*place) if place and not column.is_star else "", qualifier


def _origin(column: exp.Column, schema: Schema) -> tuple[str, str] | None:
    """(table, column) from which the column comes, also through a subquery that does not rename it."""
    home = found(column, schema)
    if home is None or home[1].table is not None:
        return place_of(column, schema)
    origin = home[1].columns.get(column.name.casefold())
    if isinstance(origin, exp.Column) and first_select(origin.parent_select or origin) is not None:
        return _origin(origin, schema)
    return None


MOST_COLUMNS = 120  # distractors are added only to schemas below this


@dataclass(frozen=True, slots=True)
class Variant:
    """`base` is the cut and extended schema under its old names, `schema` the same under new names."""

    base: Schema
    schema: Schema
    naming: Naming


UNNAMED = Naming({}, {})


def original(schema: Schema) -> Variant:
    """The schema unchanged."""
    return Variant(schema, schema, UNNAMED)


def draw(
    schema: Schema, needed: Collection[ColumnRef], others: Sequence[Table], synonyms: Synonyms, rng: Random
) -> Variant:
    """A variant that keeps the needed columns. `others`: tables of other databases, from which distractors are taken."""
    base = _cut(schema, needed, rng)
    base = _extended(base, others, rng)
    tables = list(base.tables)
    rng.shuffle(tables)
    base = replace(base, tables=tuple(tables))
    naming = _named(base, synonyms, rng)
    return Variant(base, rename_schema(base, naming), naming)


def _cut(schema: Schema, needed: Collection[ColumnRef], rng: Random) -> Schema:
    """The schema without some of the tables and columns that are not needed."""
    lose_table, lose_column = rng.choice((0.0, 0.3, 0.7)), rng.choice((0.0, 0.15, 0.4))
    used = {table for table, _ in needed}
    kept = [table for table in schema.tables if table.name in used or rng.random() >= lose_table]
    names = {table.name for table in kept or schema.tables[:1]}
    keys = {(t.name, c) for t in schema.tables for k in t.foreign_keys if k.ref_table in names for c in k.columns}
    keys |= {(k.ref_table, c) for t in schema.tables for k in t.foreign_keys for c in k.ref_columns}
    keys |= {(t.name, c.name) for t in schema.tables for c in t.columns if c.primary_key}
    keep = keys.union(needed)
    return replace(
        schema,
        tables=tuple(_cut_table(t, names, keep, lose_column, rng) for t in schema.tables if t.name in names),
    )


def _cut_table(table: Table, names: set[str], keep: Collection[ColumnRef], lose: float, rng: Random) -> Table:
    columns = tuple(c for c in table.columns if (table.name, c.name) in keep or rng.random() >= lose)
    keys = tuple(key for key in table.foreign_keys if key.ref_table in names)
    return replace(table, columns=columns or table.columns[:1], foreign_keys=keys)


def _extended(schema: Schema, others: Sequence[Table], rng: Random) -> Schema:
    """The schema with up to three tables, and sometimes a column, of other databases."""
    if sum(len(table.columns) for table in schema.tables) > MOST_COLUMNS or not others:
        return schema
    taken = {table.name.casefold() for table in schema.tables}
    guests = rng.sample(others, min(rng.choice((0, 0, 1, 1, 2, 3)), len(others)))
    guests = [guest for guest in guests if guest.name.casefold() not in taken]
    distinct = {guest.name.casefold(): replace(guest, foreign_keys=()) for guest in guests}
    share = rng.choice((0.0, 0.0, 0.3))
    tables = [_with_guest(t, rng.choice(others), rng) if rng.random() < share else t for t in schema.tables]
    return replace(schema, tables=(*tables, *distinct.values()))


def _with_guest(table: Table, other: Table, rng: Random) -> Table:
    guest = replace(rng.choice(other.columns), primary_key=False)
    if table.column(guest.name) is not None:
        return table
    place = rng.randint(1, len(table.columns))
    return replace(table, columns=(*table.columns[:place], guest, *table.columns[place:]))


Style = Callable[[Sequence[str]], str]


def _camel(words: Sequence[str]) -> str:
    return "".join([words[0], *(word.capitalize() for word in words[1:])])


# How often each style is drawn; None keeps the spelling of names whose words do not change.
STYLES: Mapping[str, tuple[int, Style]] = {
    "snake": (4, "_".join),
    "Snake": (1, lambda words: "_".join(word.capitalize() for word in words)),
    "SNAKE": (1, lambda words: "_".join(words).upper()),
    "Camel": (2, lambda words: "".join(word.capitalize() for word in words)),
    "camel": (2, _camel),
    "run": (1, "".join),
    "spaces": (1, lambda words: " ".join(word.capitalize() for word in words)),
}
KEEP_STYLE = 0.4


# How a schema may shorten long words: customer becomes cus, cust or cstmr.
SHORTENINGS: Sequence[Callable[[str], str]] = (
    lambda word: word[:3],
    lambda word: word[:4],
    lambda word: (word[0] + "".join(letter for letter in word[1:] if letter not in "aeiou"))[:5],
)
LONG_WORD = 5  # letters


def _named(schema: Schema, synonyms: Synonyms, rng: Random) -> Naming:
    share, keep = rng.choice((0.0, 0.35, 0.7)), rng.random() < KEEP_STYLE
    style = rng.choices([style for _, style in STYLES.values()], [weight for weight, _ in STYLES.values()])[0]
    words = _Words(synonyms, share, rng.choice((0.0, 0.0, 0.0, 0.6)), rng)
    tables = _unique([table.name for table in schema.tables], words, style, keep)
    columns = {
        (table.name, old): new
        for table in schema.tables
        for old, new in _unique([column.name for column in table.columns], words, style, keep).items()
    }
    return Naming(tables, columns)


class _Words:
    """Replaces some words by synonyms, then shortens some long ones: each word in the same way everywhere.

    swapped: the share of the words with synonyms that one replaces; shortened: the share of the long words.
    """

    def __init__(self, synonyms: Synonyms, swapped: float, shortened: float, rng: Random) -> None:
        self._synonyms, self._swapped, self._shortened, self._rng = synonyms, swapped, shortened, rng
        self._shorten = rng.choice(SHORTENINGS)
        self._chosen: dict[str, str] = {}

    def instead(self, word: str) -> str:
        if word not in self._chosen:
            swapped = word in self._synonyms and self._rng.random() < self._swapped
            new = self._rng.choice(self._synonyms[word]) if swapped else word
            self._chosen[word] = " ".join(map(self._short, new.split()))
        return self._chosen[word]

    def _short(self, word: str) -> str:
        return self._shorten(word) if len(word) >= LONG_WORD and self._rng.random() < self._shortened else word


def _unique(names: Sequence[str], words: _Words, style: Style, keep: bool) -> dict[str, str]:
    """New names by old ones; an old name stays if the new one is taken or would be a reserved word."""
    taken = {name.casefold() for name in names}
    found: dict[str, str] = {}
    for name in names:
        new = _new_name(name, words, style, keep)
        if new.casefold() != name.casefold() and new.casefold() in taken:
            new = name
        taken.add(new.casefold())
        found[name] = new
    return found


def _new_name(name: str, words: _Words, style: Style, keep: bool) -> str:
    old = [word for word in name_words(name) if word]
    new = [part for word in old for part in words.instead(word).split()]
    if not old or (keep and new == old):
        return name
    written = ("_".join if keep else style)(new)
    usable = " " in written or (is_plain(written, "sqlite") and is_plain(written, "duckdb"))
    return written if usable and written != "_" else name


def distractors(schemas: Sequence[Schema]) -> tuple[Table, ...]:
    """The tables of these databases that can be added to another schema: not too wide, and with at least two columns."""
    return tuple(table for schema in schemas for table in schema.tables if 2 <= len(table.columns) <= 12)
