"""Finds which columns name the rows of a table, and looks the names of ids up."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tools.linking.word_forms import name_words, stem
from tools.result import QueryError, Result
from tools.schema import ColumnRef, Table
from tools.sql.scope import type_kind

MOST_NAMED = 2000
"""Different ids up to which their names are looked up: of more, none is named, since a column of names has no gaps."""
Run = Callable[[str], Result | QueryError]
Labels = Mapping[str, tuple[str, ...]]
"""Declared label columns by table, in lower case."""

_NAMES = ("name", "title", "label", "full name")
_PERSON = ("first name", "last name")


@dataclass(frozen=True, slots=True)
class Named:
    """The table whose rows an id stands for, and the column that holds the id there."""

    table: Table
    column: str


def label_columns(table: Table, declared: Labels) -> tuple[str, ...]:
    """The columns that name a row of the table: those declared, `name` or `title`, first and last name, `singer_name`, or the
    only text that is no key. None if no rule is sure.
    """
    if found := [name for name in declared.get(table.name.casefold(), ()) if table.column(name)]:
        return tuple(found)
    texts = {" ".join(name_words(each.name)): each.name for each in table.columns if type_kind(each.type) == "text"}
    own = " ".join(map(stem, name_words(table.name)))
    for wanted in (*_NAMES, f"{own} name", f"{own} title"):
        if wanted in texts:
            return (texts[wanted],)
    if all(part in texts for part in _PERSON):
        return tuple(texts[part] for part in _PERSON)
    ending = [name for spelt, name in texts.items() if spelt.endswith(_NAMES[:2])]
    if len(ending) == 1:
        return (ending[0],)
    keys = {each.name for each in table.columns if each.primary_key}
    return tuple(texts.values()) if len(texts) == 1 and not keys & set(texts.values()) else ()


def names_of(ids: Iterable[Any], named: Named, labels: Sequence[str], run: Run, dialect: str) -> dict[Any, str]:
    """The names of ids, by one bounded query; none if it fails."""
    wanted = list(dict.fromkeys(each for each in ids if isinstance(each, int | str)))
    if not 0 < len(wanted) <= MOST_NAMED:
        return {}
    columns = [exp.column(exp.to_identifier(each, quoted=True)) for each in (named.column, *labels)]
    schema, _, bare = named.table.name.rpartition(".")
    table = exp.Table(
        this=exp.to_identifier(bare, quoted=True), db=exp.to_identifier(schema, quoted=True) if schema else None
    )
    literals = [exp.Literal.number(each) if isinstance(each, int) else exp.Literal.string(each) for each in wanted]
    outcome = run(exp.select(*columns).from_(table).where(columns[0].copy().isin(*literals)).sql(dialect))
    if isinstance(outcome, QueryError):
        return {}
    found = {row[0]: " ".join(str(part) for part in row[1:] if part is not None) for row in outcome.rows}
    return {key: name for key, name in found.items() if name}


def named_by(column: ColumnRef, table: Table, other: Callable[[str], Table | None]) -> Named | None:
    """What a column's ids stand for: rows of the table that it refers to, or, for a primary key, of its own. `other` finds a
    table by its name.
    """
    for key in table.foreign_keys:
        if [each.casefold() for each in key.columns] == [column[1].casefold()]:
            there = other(key.ref_table)
            return Named(there, key.ref_columns[0]) if there else None
    keys = [each.name.casefold() for each in table.columns if each.primary_key]
    return Named(table, column[1]) if keys == [column[1].casefold()] else None
