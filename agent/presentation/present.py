"""Makes of a query's result what people are shown. The rows stay the query's; columns may be added to its own."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from sqlglot import exp

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
    named_by,
    names_of,
    sort_key,
)
from agent.presentation.sentence import plural, words
from agent.presentation.shown import MOST_TIED, Shown, ShownColumn, Sorting, kind_of_cells
from tools.result import QueryError, Result
from tools.schema import Schema
from tools.sql.scope import one_value, owner, parse_or_nothing

Cells = Sequence[Sequence[Any]]


def present(result: Result, sql: str, schema: Schema, run: Run, labels: Labels | None = None) -> Shown:
    """What is shown of a result of `sql`. `run` runs a further query under the same limits and the same guard as the first."""
    select = _select(sql, schema.dialect)
    if select is None or len(select.expressions) != len(result.columns):
        return _as_it_is(result)
    wider = fuller(select, schema)
    rows = _wider_rows(wider, result, run, schema.dialect)
    if rows is None:
        wider, rows = Fuller(select, 0, 0), result.rows

    def shown(cells: Cells, sorting: Sorting | None) -> Shown:
        columns = _columns(wider.select, cells, schema)
        given = tuple(range(wider.before, len(columns) - wider.after))
        plain = Shown(columns, tuple(map(tuple, cells)), given, result.truncated, sorting)
        return _with_names(plain, wider.select, schema, run, labels or {}).names_first()

    sorting = _sorting(wider.select)
    tied = _tied(wider.select, rows, sorting, run, schema.dialect)
    return replace(shown(rows, sorting), tied=shown(tied, sorting).rows if tied else ())


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


def _wider_rows(wider: Fuller, result: Result, run: Run, dialect: str) -> Cells | None:
    """The rows with more columns; None if there are no more, or if without them they are not the query's own rows."""
    if not (wider.before or wider.after) or not result.rows:
        return None
    outcome = run(wider.select.sql(dialect))
    if isinstance(outcome, QueryError) or outcome.truncated != result.truncated:
        return None
    own = [tuple(row[wider.before : len(row) - wider.after]) for row in outcome.rows]
    return outcome.rows if Counter(map(repr, own)) == Counter(map(repr, result.rows)) else None


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


def _columns(select: exp.Select, rows: Cells, schema: Schema) -> tuple[ShownColumn, ...]:
    return tuple(
        _column(item, heading, [row[place] for row in rows], schema)
        for place, (item, heading) in enumerate(zip(select.expressions, headings(select, schema), strict=True))
    )


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


def _with_names(shown: Shown, select: exp.Select, schema: Schema, run: Run, labels: Labels) -> Shown:
    """Names next to ids, from right to left, so that places stay."""
    in_sight = {(table, column) for item in select.expressions for table, column in _columns_of(item, schema)}
    for place in reversed(range(len(select.expressions))):
        inner = one_value(select.expressions[place])
        named = _named(inner, schema)
        own = label_columns(named.table, labels) if named else ()
        if not named or not own or named.column in own:
            continue
        if _owner(inner, schema) != named.table.name and any((named.table.name, each) in in_sight for each in own):
            continue
        if _owner(inner, schema) == named.table.name and _is_own_key(inner, named, in_sight, own):
            continue
        ids = [row[place] for row in shown.rows]
        if names := names_of(ids, named, own, run, schema.dialect):
            heading = label_heading(inner.name, named.table)
            column = ShownColumn(heading, "text", is_label=True, of=plural(heading))
            shown = shown.with_column(place, column, [names.get(each) for each in ids])
    return shown


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
