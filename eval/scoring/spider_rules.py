"""Spider's rules: execution accuracy and levels of hardness, as in the official script (taoyds/test-suite-sql-eval).

Execution accuracy is that of its `eval_exec_match`. Rows are compared as bags, or as lists if the gold text says ORDER BY;
columns may come in any order; 1 equals 1.0; '1' does not equal 1; floats have no tolerance. Nothing here runs SQL;
`eval/scoring/referee.py` does.

The four levels of hardness are computed from the gold query by the counts of the official script.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from eval.scoring.rules import (
    PLACEHOLDER,
    Marks,
    Predicted,
    Row,
    Rules,
    first_statement,
    one_line,
    without_distinct,
)
from eval.scoring.spider_parse import ColumnUse, Condition, Conditions, Expression, Query, Tables

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
    """What the official script does first with a prediction."""
    return sql.replace("value", "1")


def order_matters(gold: str) -> bool:
    """Whether the gold text contains "order by" anywhere, even in a sub-query or a literal."""
    return "order by" in gold.lower()


def spider_match(gold_rows: Sequence[Row], predicted_rows: Sequence[Row], ordered: bool) -> bool:
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


def _same_cells(gold_rows: Sequence[Row], predicted_rows: Sequence[Row], ordered: bool) -> bool:
    """The official quick test: whether the rows are equal after each is sorted by its cells' text and type.

    It is stricter than equality of values: (1, 1.5) and (1.0, 1.5) sort differently, so they are judged different.
    """
    gold, predicted = [_sorted_cells(row) for row in gold_rows], [_sorted_cells(row) for row in predicted_rows]
    return gold == predicted if ordered else set(gold) == set(predicted)


def _sorted_cells(row: Row) -> Row:
    return tuple(sorted(row, key=lambda cell: f"{cell}{type(cell)}"))


def _columns_can_be_matched(gold_rows: Sequence[Row], predicted_rows: Sequence[Row]) -> bool:
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


def _distinct_columns(columns: Sequence[Row], chosen: tuple[int, ...]) -> list[int]:
    """The unused columns, one for each content: equal columns are interchangeable, and trying all would be exponential."""
    free: dict[Row, int] = {}
    for index, column in enumerate(columns):
        if index not in chosen:
            free.setdefault(column, index)
    return list(free.values())


def load_schemas(tables_json: Path) -> dict[str, Tables]:
    """The tables of tables.json by `db_id`."""
    return {entry["db_id"]: _tables(entry) for entry in json.loads(tables_json.read_text(encoding="utf-8"))}


def _tables(entry: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    columns = entry["column_names_original"]
    return {
        name.lower(): tuple(column.lower() for owner, column in columns if owner == index)
        for index, name in enumerate(entry["table_names_original"])
    }


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
    """Compares rows as bags, or in order if the gold query has one, on every *.sqlite file of the folder."""

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

    def files(self, records: Sequence[Predicted]) -> Mapping[str, str]:
        """pred.txt and gold.txt, as `evaluation.py --gold gold.txt --pred pred.txt` reads them."""
        return {
            "pred.txt": "".join(f"{self.prediction(record.sql)}\n" for record in records),
            "gold.txt": "".join(f"{one_line(record.gold)}\t{record.db_id}\n" for record in records),
        }


SPIDER = SpiderRules()
