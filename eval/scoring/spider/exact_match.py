"""Spider's exact match: two queries are equal if every clause is, as sets, whatever values they compare with.

The rules are those of the official script (taoyds/test-suite-sql-eval, `Evaluator.eval_exact_match`): DISTINCT does
not count, columns joined by a foreign key are the same column, a query that cannot be parsed matches nothing. Its
asymmetries are kept: differences in foreign keys and DISTINCT are ignored only in the outermost query and its set
operations, those in values also in sub-queries of conditions, and none is ignored in a sub-query of FROM.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.scoring.spider.clauses import (
    EMPTY_QUERY,
    ColumnUse,
    Condition,
    Conditions,
    Expression,
    Operand,
    Query,
    Tables,
    UnreadableError,
)
from eval.scoring.spider.execution_match import plug_in_value
from eval.scoring.spider.parse import parse

# Column -> the column that represents all those that foreign keys join with it.
ForeignKeys = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SpiderSchema:
    """What exact match needs of one entry of tables.json."""

    tables: Tables
    foreign_keys: ForeignKeys


def load_schemas(tables_json: Path) -> dict[str, SpiderSchema]:
    """The schemas of tables.json by `db_id`."""
    entries = json.loads(tables_json.read_text(encoding="utf-8"))
    return {entry["db_id"]: SpiderSchema(_tables(entry), _foreign_keys(entry)) for entry in entries}


def exact_match(gold: str, prediction: str, schema: SpiderSchema) -> bool:
    """The official verdict. Raises `UnreadableError` if the gold query cannot be parsed (the official script stops)."""
    expected = _levelled(parse(gold, schema.tables), schema)
    try:
        found = parse(plug_in_value(prediction), schema.tables)
    except UnreadableError:
        found = EMPTY_QUERY
    return _same(_levelled(found, schema), expected)


def _tables(entry: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    columns = entry["column_names_original"]
    return {
        name.lower(): tuple(column.lower() for owner, column in columns if owner == index)
        for index, name in enumerate(entry["table_names_original"])
    }


def _foreign_keys(entry: Mapping[str, Any]) -> dict[str, str]:
    """Maps joined columns to the first column of their group. A key that touches two groups joins the earlier one."""
    groups: list[set[int]] = []
    for pair in entry["foreign_keys"]:
        group = next((known for known in groups if known.intersection(pair)), None)
        if group is None:
            groups.append(group := set())
        group.update(pair)
    names = _column_names(entry)
    return {names[column]: names[min(group)] for group in groups for column in sorted(group)}


def _column_names(entry: Mapping[str, Any]) -> list[str]:
    tables = entry["table_names_original"]
    return [
        f"{tables[owner]}.{column}".lower() if owner >= 0 else "*" for owner, column in entry["column_names_original"]
    ]


def _levelled(query: Query, schema: SpiderSchema) -> Query:
    """`query` without what must not count, its columns replaced by those that represent them."""
    owned = {f"{name}.{column}" for name in query.tables if isinstance(name, str) for column in schema.tables[name]}
    keys = {column: leader for column, leader in schema.foreign_keys.items() if column in owned}
    return _level_columns(_level_values(query), keys)


def _level_values(query: Query) -> Query:
    operation = query.set_operation
    return replace(
        query,
        joins=_without_values(query.joins),
        where=_without_values(query.where),
        having=_without_values(query.having),
        set_operation=operation and (operation[0], _level_values(operation[1])),
    )


def _without_values(conditions: Conditions) -> Conditions:
    return tuple(
        replace(part, first=_without_value(part.first), second=_without_value(part.second))
        if isinstance(part, Condition)
        else part
        for part in conditions
    )


def _without_value(operand: Operand) -> Query | None:
    return _level_values(operand) if isinstance(operand, Query) else None


def _level_columns(query: Query, keys: ForeignKeys) -> Query:
    """`query` with its columns replaced; the keys of the outermost FROM apply to its set operations too."""
    operation = query.set_operation
    return replace(
        query,
        select=tuple((aggregate, _level_expression(item, keys)) for aggregate, item in query.select),
        where=_level_conditions(query.where, keys),
        having=_level_conditions(query.having, keys),
        group=tuple(_level_column(column, keys) for column in query.group),
        order=query.order and (query.order[0], tuple(_level_expression(item, keys) for item in query.order[1])),
        set_operation=operation and (operation[0], _level_columns(operation[1], keys)),
    )


def _level_conditions(conditions: Conditions, keys: ForeignKeys) -> Conditions:
    return tuple(
        replace(part, left=_level_expression(part.left, keys)) if isinstance(part, Condition) else part
        for part in conditions
    )


def _level_expression(expression: Expression, keys: ForeignKeys) -> Expression:
    right = expression.right and _level_column(expression.right, keys)
    return Expression(expression.operator, _level_column(expression.left, keys), right)


def _level_column(use: ColumnUse, keys: ForeignKeys) -> ColumnUse:
    return ColumnUse(use.aggregate, keys.get(use.column, use.column), None)


def _same(found: Query, expected: Query) -> bool:
    return (
        _same_bag(found.select, expected.select)
        and _same_bag(found.where[::2], expected.where[::2])
        and set(found.where[1::2]) == set(expected.where[1::2])
        and _same_groups(found, expected)
        and found.order == expected.order
        and _same_set_operation(found, expected)
        and _keywords(found) == _keywords(expected)
        and (not expected.tables or _same_bag(found.tables, expected.tables))
    )


def _same_bag(found: Sequence[object], expected: Sequence[object]) -> bool:
    return Counter(found) == Counter(expected)


def _same_groups(found: Query, expected: Query) -> bool:
    """GROUP BY columns in order, and HAVING; HAVING without GROUP BY does not count."""
    columns, wanted = ([use.column for use in query.group] for query in (found, expected))
    return columns == wanted and (not wanted or found.having == expected.having)


def _same_set_operation(found: Query, expected: Query) -> bool:
    if found.set_operation is None or expected.set_operation is None:
        return found.set_operation is expected.set_operation
    return found.set_operation[0] == expected.set_operation[0] and _same(
        found.set_operation[1], expected.set_operation[1]
    )


def _keywords(query: Query) -> set[str]:
    """The keywords on which both queries must agree, including those in JOIN, WHERE and HAVING. Only here does LIMIT count."""
    present = {
        "where": query.where,
        "group": query.group,
        "having": query.having,
        "order": query.order,
        "limit": query.limited,
    }
    words = {word for word, clause in present.items() if clause}
    words.update(_operators(query))
    if query.order:
        words.add(query.order[0])
    if query.set_operation:
        words.add(query.set_operation[0])
    return words


def _operators(query: Query) -> Iterable[str]:
    for conditions in (query.joins, query.where, query.having):
        yield from ("or" for part in conditions[1::2] if part == "or")
        for part in conditions[::2]:
            if isinstance(part, Condition):
                yield from ("not" for _ in range(part.negated))
                yield from {part.operator} & {"in", "like"}
