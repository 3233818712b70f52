"""Adds to a query the columns that say what its rows are, and the names that belong to ids.

Finds which columns name the rows of a table, and looks the names of ids up.

Adds to a query the columns without which its rows do not say what they are: those it is grouped by and the one it is sorted
by. The query with them is run beside the model's own, and counts only where the common columns are the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tools.linking.word_forms import name_words, stem
from tools.result import QueryError, Result
from tools.schema import ColumnRef, Schema, Table
from tools.sql.scope import one_value, owner, type_kind

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


@dataclass(frozen=True, slots=True)
class Fuller:
    """`before` columns stand before the query's own, `after` (0 or 1) behind them."""

    select: exp.Select
    before: int
    after: int


def fuller(select: exp.Select, schema: Schema) -> Fuller:
    """The query with the columns that it lacks; with none if it lacks none, or if more columns would change its rows."""
    whole = select.copy()
    assert isinstance(whole, exp.Select)
    order = select.args.get("order")
    by_place = any(isinstance(each.this, exp.Literal) for each in (order.expressions if order else ()))
    if select.args.get("distinct") or by_place:
        return Fuller(whole, 0, 0)
    there = {_text(one_value(each)) for each in select.expressions} | {
        each.alias.casefold() for each in select.expressions
    }
    groups = [each for each in _groups(select) if _text(each) not in there and not _is_named(each, select, schema)]
    key = sort_key(select)
    added = [key] if key is not None and _text(key) not in there and _text(key) not in map(_text, groups) else []
    if any(each.find(exp.Select, exp.Subquery) or _is_key(each, schema) for each in added):
        added = []
    whole.set("expressions", [each.copy() for each in (*groups, *whole.expressions, *added)])
    return Fuller(whole, len(groups), len(added))


def sort_key(select: exp.Select) -> exp.Expr | None:
    """What the rows are sorted by first; None if by nothing, or by a column's place."""
    order = select.args.get("order")
    first = order.expressions[0].this if order and order.expressions else None
    return None if first is None or isinstance(first, exp.Literal) else first


def _groups(select: exp.Select) -> list[exp.Expr]:
    group = select.args.get("group")
    return [each for each in group.expressions if isinstance(each, exp.Column)] if group else []


def _is_key(node: exp.Expr, schema: Schema) -> bool:
    """Whether it is a primary key: rows sorted by it are in no order that says anything."""
    source = owner(node, schema) if isinstance(node, exp.Column) else None
    column = source.table.column(node.name) if source and source.table else None
    return column is not None and column.primary_key


def _is_named(group: exp.Expr, select: exp.Select, schema: Schema) -> bool:
    """Whether the query shows another column of the rows that it groups by a key, such as their name."""
    if not isinstance(group, exp.Column) or not (source := owner(group, schema)) or source.table is None:
        return False
    key = source.table.column(group.name)
    refers = {each.ref_table.casefold() for each in source.table.foreign_keys if group.name in each.columns}
    if not refers and not (key and key.primary_key):
        return False
    stands_for = refers or {source.table.name.casefold()}
    shown = [column for item in select.expressions for column in item.find_all(exp.Column)]
    owners = [owner(column, schema) for column in shown if not column.find_ancestor(exp.Count, exp.Sum, exp.Avg)]
    return any(each and each.table and each.table.name.casefold() in stands_for for each in owners)


def _text(node: exp.Expr) -> str:
    return node.sql().casefold()
