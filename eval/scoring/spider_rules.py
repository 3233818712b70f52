"""Spider's rules: exact match, execution accuracy and levels of hardness, as in the official scripts.

Spider's execution accuracy by the rules of the official script (taoyds/test-suite-sql-eval, `eval_exec_match`).

Rows are compared as bags, or as lists if the gold text says ORDER BY; columns may come in any order; 1 equals 1.0;
'1' does not equal 1; floats have no tolerance. Nothing here runs SQL; `eval/scoring/referee.py` does.

Spider's exact match: two queries are equal if every clause is, as sets, whatever values they compare with.

The rules are those of the official script (taoyds/test-suite-sql-eval, `Evaluator.eval_exact_match`): DISTINCT does
not count, columns joined by a foreign key are the same column, a query that cannot be parsed matches nothing. Its
asymmetries are kept: differences in foreign keys and DISTINCT are ignored only in the outermost query and its set
operations, those in values also in sub-queries of conditions, and none is ignored in a sub-query of FROM.

Spider's four levels of hardness, computed from the gold query by the counts of the official script.

Spider's rules, as in the official script (taoyds/test-suite-sql-eval).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from eval.scoring.rules import (
    PLACEHOLDER,
    ExactMatch,
    Marks,
    Predicted,
    Row,
    Rules,
    first_statement,
    one_line,
    without_distinct,
)
from eval.scoring.spider_parse import (
    EMPTY_QUERY,
    ColumnUse,
    Condition,
    Conditions,
    Expression,
    Operand,
    Query,
    Tables,
    UnreadableError,
    parse,
)

_Row = tuple[object, ...]

_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_SPLIT_OPERATORS = (("> =", ">="), ("< =", "<="), ("! =", "!="))


def prepare_gold(sql: str) -> str:
    """The gold query in the form that is run: operators joined (! = to !=), first statement only, DISTINCT dropped, and 2020
    as the current year.
    """
    for split, glued in _SPLIT_OPERATORS:
        sql = sql.replace(split, glued)
    return _CURRENT_YEAR.sub("2020", without_distinct(first_statement(sql)))


def prepare_prediction(sql: str) -> str:
    """The prediction in the form that is run: treated like the gold query, after every "value" is replaced by "1".

    The official script makes this replacement, which also affects names: a lower-case column `value` is scored as wrong.
    """
    return prepare_gold(plug_in_value(sql))


def plug_in_value(sql: str) -> str:
    """What the official script does first with a prediction, before both execution and exact match."""
    return sql.replace("value", "1")


def order_matters(gold: str) -> bool:
    """Whether the gold text contains "order by" anywhere, even in a sub-query or a literal."""
    return "order by" in gold.lower()


def spider_match(gold_rows: Sequence[_Row], predicted_rows: Sequence[_Row], ordered: bool) -> bool:
    """Whether some order of the prediction's columns makes the two results equal, as lists if `ordered`, otherwise as bags.

    Two empty results are equal whatever their columns.
    """
    if not gold_rows and not predicted_rows:
        return True
    if len(gold_rows) != len(predicted_rows) or len(gold_rows[0]) != len(predicted_rows[0]):
        return False
    if not _same_cells(gold_rows, predicted_rows, ordered):
        return False
    if ordered:
        return Counter(zip(*gold_rows, strict=True)) == Counter(zip(*predicted_rows, strict=True))
    return _columns_can_be_matched(gold_rows, predicted_rows)


def _same_cells(gold_rows: Sequence[_Row], predicted_rows: Sequence[_Row], ordered: bool) -> bool:
    """The official quick test: whether the rows are equal after each is sorted by its cells' text and type.

    It is stricter than equality of values: (1, 1.5) and (1.0, 1.5) sort differently, so they are judged different.
    """
    gold, predicted = [_sorted_cells(row) for row in gold_rows], [_sorted_cells(row) for row in predicted_rows]
    return gold == predicted if ordered else set(gold) == set(predicted)


def _sorted_cells(row: _Row) -> _Row:
    return tuple(sorted(row, key=lambda cell: f"{cell}{type(cell)}"))


def _columns_can_be_matched(gold_rows: Sequence[_Row], predicted_rows: Sequence[_Row]) -> bool:
    """Search for a bijection of columns that makes the bags of rows equal, one gold column after the other.

    A partial choice is pursued only while the rows, cut to the chosen columns, are equal as bags.
    """
    width = len(gold_rows[0])
    gold_bags = [Counter(row[: count + 1] for row in gold_rows) for count in range(width)]
    columns = list(zip(*predicted_rows, strict=True))
    partial: list[tuple[int, ...]] = [()]
    while partial:
        chosen = partial.pop()
        if len(chosen) == width:
            return True
        partial += [
            (*chosen, column)
            for column in _distinct_columns(columns, chosen)
            if Counter(zip(*(columns[c] for c in (*chosen, column)), strict=True)) == gold_bags[len(chosen)]
        ]
    return False


def _distinct_columns(columns: Sequence[_Row], chosen: tuple[int, ...]) -> list[int]:
    """The unused columns, one for each content: equal columns are interchangeable, and trying all would be exponential."""
    free: dict[_Row, int] = {}
    for index, column in enumerate(columns):
        if index not in chosen:
            free.setdefault(column, index)
    return list(free.values())


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


Hardness = Literal["easy", "medium", "hard", "extra"]


def hardness(query: Query) -> Hardness:
    """The official level of a gold query as parsed by `eval.scoring.spider_parse.parse`."""
    clauses, nested, others = _clauses(query), _nested(query), _others(query)
    if nested == 0:
        if clauses <= 1 and others == 0:
            return "easy"
        if (clauses <= 1 and others <= 2) or (clauses <= 2 and others < 2):
            return "medium"
        if (clauses <= 2 and others > 2) or (clauses == 3 and others <= 2):
            return "hard"
    elif nested == 1 and clauses <= 1 and others == 0:
        return "hard"
    return "extra"


def _conditions(query: Query) -> list[Condition | str]:
    return [*query.joins[::2], *query.where[::2], *query.having[::2]]


def _clauses(query: Query) -> int:
    """How many there are of WHERE, GROUP BY, ORDER BY, LIMIT, further tables, OR and LIKE."""
    present = sum(map(bool, (query.where, query.group, query.order, query.limited)))
    words = [*query.joins[1::2], *query.where[1::2], *query.having[1::2]]
    likes = sum(isinstance(part, Condition) and part.operator == "like" for part in _conditions(query))
    return present + max(0, len(query.tables) - 1) + words.count("or") + likes


def _nested(query: Query) -> int:
    """The number of sub-queries in conditions, plus one for a set operation; sub-queries in FROM do not count."""
    bounds = [
        bound for part in _conditions(query) if isinstance(part, Condition) for bound in (part.first, part.second)
    ]
    return sum(isinstance(bound, Query) for bound in bounds) + bool(query.set_operation)


def _others(query: Query) -> int:
    """One each for several aggregates, selected columns, WHERE conditions and GROUP BY columns."""
    return (_aggregates(query) > 1) + (len(query.select) > 1) + (len(query.where) > 1) + (len(query.group) > 1)


def _aggregates(query: Query) -> int:
    """The number of aggregates as the official script counts them: in conditions it counts NOT instead of aggregates."""
    selected = sum(aggregate != "none" for aggregate, _ in query.select)
    grouped = sum(use.aggregate != "none" for use in query.group)
    ordered = sum(use.aggregate != "none" for item in (query.order or ("", ()))[1] for use in _uses(item))
    return selected + grouped + ordered + _negations(query.where) + _negations(query.having)


def _negations(conditions: Conditions) -> int:
    return sum(isinstance(part, Condition) and part.negated for part in conditions[::2])


def _uses(item: Expression) -> list[ColumnUse]:
    return [use for use in (item.left, item.right) if use]


class SpiderRules(Rules):
    """Compares rows as bags, or in order if the gold query has one, on every *.sqlite file of the folder; and exact match."""

    levels = ("easy", "medium", "hard", "extra")
    lenient = True

    def marks(self, gold: str, gold_rows: Sequence[Row], rows: Sequence[Row]) -> Marks:
        return Marks(spider_match(gold_rows, rows, order_matters(prepare_gold(gold))))

    def prediction(self, sql: str) -> str:
        """`sql` on one line without tabs, as in pred.txt; the placeholder if nothing is left."""
        return one_line(sql) or PLACEHOLDER

    def runnable_gold(self, gold: str) -> str:
        return prepare_gold(gold)

    def runnable(self, prediction: str) -> str:
        return prepare_prediction(prediction)

    def databases(self, database: Path) -> Sequence[Path]:
        """All *.sqlite files in the database's folder: in the test-suite folders, these are the test suite."""
        return sorted(database.parent.glob("*.sqlite"))

    def exact_match(self, tables: Path | None) -> ExactMatch:
        """A comparison by exact match, which gives None without tables.json or if the gold query cannot be parsed."""
        schemas = load_schemas(tables) if tables else {}

        def match(db_id: str, gold: str, prediction: str) -> bool | None:
            schema = schemas.get(db_id)
            try:
                return exact_match(gold, prediction, schema) if schema else None
            except UnreadableError:
                return None

        return match

    def files(self, records: Sequence[Predicted]) -> Mapping[str, str]:
        """pred.txt and gold.txt, as `evaluation.py --gold gold.txt --pred pred.txt` reads them."""
        return {
            "pred.txt": "".join(f"{self.prediction(record.sql)}\n" for record in records),
            "gold.txt": "".join(f"{one_line(record.gold)}\t{record.db_id}\n" for record in records),
        }


SPIDER = SpiderRules()
