"""Makes of a query's result what people are shown, and the one statement that gives it. The rows stay the query's; columns may
be added to its own, and groups that a query leaves in no order are sorted."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from numbers import Number
from typing import Any

from sqlglot import exp

from agent.presentation.done import what_was_done
from agent.presentation.headings import (
    Fuller,
    Labels,
    Named,
    Run,
    count_of,
    fuller,
    headings,
    label_columns,
    label_heading,
    name_of,
    named_by,
    qualifier,
    sort_key,
)
from agent.presentation.sentence import plural, words
from agent.presentation.shown import MOST_TIED, Shown, ShownColumn, Sorting, kind_of_cells
from tools.result import QueryError, Result
from tools.schema import Schema
from tools.sql.scope import one_value, owner, parse_or_nothing

Cells = Sequence[Sequence[Any]]
_SPANS = ("year", "month", "day", "hour")


@dataclass(frozen=True, slots=True)
class _Item:
    """A projection of what is shown. own: its place among the query's own columns, None for an added one. name: whose name
    it is, where it was added for that."""

    node: exp.Expr
    heading: str
    own: int | None = None
    name: Named | None = None


def present(result: Result, sql: str, schema: Schema, run: Run, labels: Labels | None = None) -> Shown:
    """What is shown of a result of `sql`. `run` runs a further query under the same limits and the same guard as the first."""
    return replace(_presented(result, sql, schema, run, labels), done=what_was_done(sql, schema))


def _presented(result: Result, sql: str, schema: Schema, run: Run, labels: Labels | None) -> Shown:
    select = _select(sql, schema.dialect)
    if select is None or len(select.expressions) != len(result.columns):
        return _as_it_is(result)
    wider, own = fuller(select, schema), Fuller(select, 0, 0)
    for each in (wider, own) if result.rows and (wider.before or wider.after) else (own,):
        items = _items(each, schema)
        named = list(_with_names(items, each.select, schema, labels or {})) if result.rows else items
        for those in (named, items) if len(named) > len(items) else (items,):
            if shown := _shown(those, each.select, result, schema, run):
                return shown
    columns = tuple(
        _column(item, heading, [row[place] for row in result.rows], schema)
        for place, (item, heading) in enumerate(zip(select.expressions, headings(select, schema), strict=True))
    )
    return Shown(columns, result.rows, tuple(range(len(columns))), result.truncated, _sorting(select))


def plainly(result: Result) -> Shown:
    """A result of a query that nobody explains: its own columns with readable headings."""
    return _as_it_is(result)


def _select(sql: str, dialect: str) -> exp.Select | None:
    """The query, if it is a plain SELECT whose columns are all written out."""
    trees = parse_or_nothing(sql, dialect)
    tree = trees[0] if len(trees) == 1 else None
    return tree if isinstance(tree, exp.Select) and not any(each.is_star for each in tree.expressions) else None


def _as_it_is(result: Result) -> Shown:
    cells = [[row[place] for row in result.rows] for place in range(len(result.columns))]
    columns = tuple(
        ShownColumn(words(name), kind_of_cells(name, own, is_key=False, is_computed=False))
        for name, own in zip(result.columns, cells, strict=True)
    )
    return Shown(columns, result.rows, tuple(range(len(columns))), result.truncated)


def _items(wider: Fuller, schema: Schema) -> list[_Item]:
    own = range(wider.before, len(wider.select.expressions) - wider.after)
    pairs = zip(wider.select.expressions, headings(wider.select, schema), strict=True)
    return [
        _Item(item, heading, place - wider.before if place in own else None)
        for place, (item, heading) in enumerate(pairs)
    ]


def _shown(items: Sequence[_Item], select: exp.Select, result: Result, schema: Schema, run: Run) -> Shown | None:
    """What is shown with these columns; None if with them the rows are not the query's own, or if added names are none."""
    ordered = _in_order(items, result, schema)
    statement, is_same = _statement(select, ordered, schema)
    sql = statement.sql(schema.dialect)
    own = [item.own for item in ordered]
    rows: Cells = [tuple(row[place] for place in own if place is not None) for row in result.rows]
    if not is_same:
        outcome = run(sql)
        if isinstance(outcome, QueryError) or not _holds(outcome, result, own):
            return None
        rows = outcome.rows
    if any(item.name and not any(row[place] for row in rows) for place, item in enumerate(ordered)):
        return None
    sorting = _sorting(select)
    if sorting is not None:
        sorting = replace(sorting, place=_places(select, ordered)[sorting.place])
    columns = tuple(_shown_column(item, [row[place] for row in rows], schema) for place, item in enumerate(ordered))
    given = tuple(own.index(place) for place in range(len(result.columns)))
    tied = tuple(map(tuple, _tied(statement, rows, sorting, run, schema.dialect)))
    if keys := _sorts_well(select, columns, rows, result.truncated):
        statement, rows = _sorted(statement, columns, rows, keys)
    sql = statement.sql(schema.dialect)
    return Shown(columns, tuple(map(tuple, rows)), given, result.truncated, sorting, tied, sql)


_TIME = re.compile(r"\d{4}(-\d\d.*)?")
Keys = Sequence[tuple[int, bool]]  # places of columns, and whether the largest comes first


def _sorts_well(select: exp.Select, columns: Sequence[ShownColumn], rows: Cells, truncated: bool) -> Keys:
    """How to sort groups that nobody asked to sort: by time, otherwise those with most first. Empty where rows are not groups
    with one name and one measure."""
    asked = any(select.args.get(part) for part in ("order", "limit", "offset", "distinct"))
    measures = [place for place, column in enumerate(columns) if column.measure]
    names = [place for place, column in enumerate(columns) if not column.measure and not column.is_key]
    if asked or truncated or not select.args.get("group") or len(measures) != 1 or len(names) != 1 or len(rows) < 2:
        return ()
    name, measure = columns[names[0]], measures[0]
    if not all(_comparable([row[place] for row in rows]) for place in (names[0], measure)):
        return ()
    is_time = name.kind in ("time", "digits") or name.heading in _SPANS
    if is_time or all(_TIME.fullmatch(str(row[names[0]])) for row in rows if row[names[0]] is not None):
        return ((names[0], False),)
    return ((measure, True), (names[0], False)) if name.is_label else ()


def _comparable(cells: Sequence[Any]) -> bool:
    """Whether the cells have an order: texts and numbers in one column, as SQLite allows them, have none."""
    return len({Number if isinstance(cell, Number) else type(cell) for cell in cells if cell is not None}) <= 1


def _sorted(statement: exp.Select, columns: Sequence[ShownColumn], rows: Cells, keys: Keys) -> tuple[exp.Select, Cells]:
    """The statement with an order by its headings, and its rows in that order, empty cells last."""
    for place, largest_first in reversed(keys):
        known = [row for row in rows if row[place] is not None]
        rows = [
            *sorted(known, key=lambda row: row[place], reverse=largest_first),
            *(row for row in rows if row[place] is None),
        ]
    order = [
        exp.Ordered(this=exp.column(columns[place].heading, quoted=True), desc=largest_first, nulls_first=False)
        for place, largest_first in keys
    ]
    return statement.order_by(*order), rows


def _holds(outcome: Result, result: Result, own: Sequence[int | None]) -> bool:
    """Whether the columns that are the query's own hold its own rows."""
    places = [own.index(place) for place in range(len(result.columns))]
    found = Counter(repr(tuple(row[place] for place in places)) for row in outcome.rows)
    return outcome.truncated == result.truncated and found == Counter(map(repr, result.rows))


def _in_order(items: Sequence[_Item], result: Result, schema: Schema) -> list[_Item]:
    """Names and what else says which row it is, then amounts, then ids that have a name next to them."""
    cells = [[] if item.own is None else [row[item.own] for row in result.rows] for item in items]
    columns = [_shown_column(item, own, schema) for item, own in zip(items, cells, strict=True)]
    has_name = any(column.is_label for column in columns)

    def rank(place: int) -> int:
        item, column = items[place], columns[place]
        if column.is_key:
            return 2 if has_name else 0
        return (
            1 if column.kind == "amount" or (item.own is None and not item.name and item.node.find(exp.AggFunc)) else 0
        )

    return [items[place] for place in sorted(range(len(items)), key=rank)]


def _statement(select: exp.Select, items: Sequence[_Item], schema: Schema) -> tuple[exp.Select, bool]:
    """One query with these columns under their headings; and whether it surely gives the rows of `select`, so that it need not
    be run: its columns in another order, under names that nothing in it refers to."""
    made = select.copy()
    assert isinstance(made, exp.Select)
    places = _places(select, items)
    changed = _renumber(made, places) | _qualify(
        made, {item.heading for item in items if not _is_called(item.node, item.heading)}, schema
    )
    aliases = {item.node.alias.casefold(): item.heading for item in items if isinstance(item.node, exp.Alias)}
    changed |= _rename(made, {old: new for old, new in aliases.items() if old != new}, schema)
    nodes = [item.node for item in items]
    for old, new in places.items():
        nodes[new] = made.expressions[old]
    named = [_named_as(node.unalias().copy(), item.heading) for node, item in zip(nodes, items, strict=True)]
    made.set("expressions", named)
    added = any(item.own is None for item in items)
    return made, not (changed or added)


def _places(select: exp.Select, items: Sequence[_Item]) -> dict[int, int]:
    """Where each projection of the query stands among the columns that are shown."""
    new = {id(item.node): place for place, item in enumerate(items)}
    return {old: new[id(node)] for old, node in enumerate(select.expressions)}


def _named_as(node: exp.Expr, heading: str) -> exp.Expr:
    return node if _is_called(node, heading) else exp.alias_(node, heading, quoted=True)


def _is_called(node: exp.Expr, heading: str) -> bool:
    return isinstance(node, exp.Column) and node.name == heading


def _renumber(made: exp.Select, places: dict[int, int]) -> bool:
    """ORDER BY 2 and GROUP BY 2 mean the same column where that stands elsewhere."""
    order, group = made.args.get("order"), made.args.get("group")
    keys = [each.this for each in order.expressions] if order else []
    keys += group.expressions if group else []
    numbers = [each for each in keys if isinstance(each, exp.Literal) and each.name.isdigit()]
    for each in numbers:
        if int(each.name) - 1 in places:
            each.replace(exp.Literal.number(places[int(each.name) - 1] + 1))
    return bool(numbers)


def _qualify(made: exp.Select, taken: set[str], schema: Schema) -> bool:
    """Say whose the columns are that are called like a heading, which would mean the heading."""
    meant, own = {each.casefold() for each in taken}, {each.alias.casefold() for each in made.expressions}
    found = [(part, each) for part, each in _outside(made) if each.name.casefold() in meant]
    for part, each in found:
        if part != "order" or each.name.casefold() not in own:  # there the query's own alias is meant
            each.set("table", qualifier(each, schema))
    return bool(found)


def _rename(made: exp.Select, aliases: dict[str, str], schema: Schema) -> bool:
    """Who refers to a column by the query's own alias refers to the heading."""
    inside = [("projection", column) for item in made.expressions for column in item.find_all(exp.Column)]
    found = [
        each
        for part, each in (*_outside(made), *inside)
        if not each.table and each.name.casefold() in aliases and (part == "order" or not owner(each, schema))
    ]
    for each in found:
        each.set("this", exp.to_identifier(aliases[each.name.casefold()], quoted=True))
    return bool(found)


def _outside(made: exp.Select) -> Iterator[tuple[str, exp.Column]]:
    """The unqualified columns of the query that stand outside its projections, and in which clause."""
    for part in ("where", "group", "having", "qualify", "order"):
        found = made.args.get(part)
        yield from ((part, each) for each in (found.find_all(exp.Column) if found else ()) if not each.table)


def _tied(select: exp.Select, rows: Cells, sorting: Sorting | None, run: Run, dialect: str) -> Cells:
    """The different rows that have the place of the only row that was asked for; none if it has it alone."""
    if sorting is None or sorting.only != 1 or len(rows) != 1 or select.args.get("offset"):
        return ()
    place = sorting.place
    outcome = run(select.limit(MOST_TIED + 1).sql(dialect))
    if isinstance(outcome, QueryError) or rows[0][place] is None:
        return ()
    equal = takewhile(lambda row: row[place] == rows[0][place], outcome.rows)
    different = list({repr(row): row for row in equal}.values())
    return different if len(different) > 1 and repr(rows[0]) in map(repr, different) else ()


def _shown_column(item: _Item, cells: Sequence[Any], schema: Schema) -> ShownColumn:
    if item.name:
        return ShownColumn(item.heading, "text", is_label=True, of=plural(item.heading))
    return _column(item.node, item.heading, cells, schema)


def _column(item: exp.Expr, heading: str, cells: Sequence[Any], schema: Schema) -> ShownColumn:
    inner = one_value(item)
    named, computed = _named(inner, schema), bool(inner.find(exp.AggFunc))
    kind = kind_of_cells(_name(inner, heading), cells, named is not None, computed)
    is_label = kind == "text" and not named
    return ShownColumn(
        heading,
        kind,
        counts=count_of(item, schema),
        is_key=named is not None,
        is_label=is_label,
        of=_things(inner, heading, schema) if is_label else "",
        measure=computed and kind == "amount",
    )


def _name(inner: exp.Expr, heading: str) -> str:
    return inner.name if isinstance(inner, exp.Column) else heading


def _things(inner: exp.Expr, heading: str, schema: Schema) -> str:
    """What the texts of a column name, in the plural: albums where they are titles of albums, cities where they are cities."""
    column = inner if isinstance(inner, exp.Column) else inner.find(exp.Column)
    source = owner(column, schema) if column is not None else None
    if column is not None and source and source.table and column.name in label_columns(source.table, {}):
        return plural(words(source.table.name))
    return plural(heading)


def _named(inner: exp.Expr, schema: Schema) -> Named | None:
    source = owner(inner, schema) if isinstance(inner, exp.Column) else None
    if source is None or source.table is None:
        return None
    return named_by((source.table.name, inner.name), source.table, schema.table)


def _sorting(select: exp.Select) -> Sorting | None:
    order = select.args.get("order")
    place = _sorted_place(select)
    limit = select.args.get("limit")
    only = int(limit.expression.name) if limit and limit.expression and limit.expression.name.isdigit() else None
    return None if place is None or order is None else Sorting(place, bool(order.expressions[0].args.get("desc")), only)


def _sorted_place(select: exp.Select) -> int | None:
    """The place of the column that the rows are sorted by first."""
    key, order = sort_key(select), select.args.get("order")
    first = order.expressions[0].this if order else None
    if isinstance(first, exp.Literal) and first.name.isdigit():
        return int(first.name) - 1
    wanted = key.sql().casefold() if key is not None else None
    names = [(each.unalias().sql().casefold(), each.alias.casefold()) for each in select.expressions]
    return next((place for place, both in enumerate(names) if wanted in both), None)


def _with_names(items: Sequence[_Item], select: exp.Select, schema: Schema, labels: Labels) -> Iterator[_Item]:
    """The columns, before each id one with the name that belongs to it."""
    in_sight = {each for item in select.expressions for each in _columns_of(item, schema)}
    for item in items:
        inner = one_value(item.node)
        named = _named(inner, schema)
        own = label_columns(named.table, labels) if named else ()
        if named and own and not _is_in_sight(inner, named, own, in_sight, schema):
            assert isinstance(inner, exp.Column)
            yield _Item(
                name_of(item.node, inner, named, own, schema), label_heading(inner.name, named.table), name=named
            )
        yield item


def _is_in_sight(
    inner: exp.Expr, named: Named, own: Sequence[str], in_sight: set[tuple[str, str]], schema: Schema
) -> bool:
    """Whether the query shows the name itself."""
    if named.column in own:
        return True
    if _owner(inner, schema) == named.table.name:
        return _is_own_key(inner, named, in_sight, own)
    return any((named.table.name, each) in in_sight for each in own)


def _is_own_key(inner: exp.Expr, named: Named, in_sight: set[tuple[str, str]], own: Sequence[str]) -> bool:
    """Whether a key stands next to the name of the same row."""
    return inner.name.casefold() == named.column.casefold() and any(
        (named.table.name, each) in in_sight for each in own
    )


def _owner(inner: exp.Expr, schema: Schema) -> str | None:
    source = owner(inner, schema) if isinstance(inner, exp.Column) else None
    return source.table.name if source and source.table else None


def _columns_of(item: exp.Expr, schema: Schema) -> list[tuple[str, str]]:
    """The columns whose cells an item shows, with their tables."""
    found = [each for each in item.find_all(exp.Column) if not each.find_ancestor(exp.Count)]
    owners = [(each, owner(each, schema)) for each in found]
    return [(source.table.name, each.name) for each, source in owners if source and source.table]
