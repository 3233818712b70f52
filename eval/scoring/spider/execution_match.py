"""Spider's execution accuracy by the rules of the official script (taoyds/test-suite-sql-eval, `eval_exec_match`).

Rows are compared as bags, or as lists if the gold text says ORDER BY; columns may come in any order; 1 equals 1.0;
'1' does not equal 1; floats have no tolerance. Nothing here runs SQL; `eval/scoring/referee.py` does.
"""

import re
from collections import Counter
from collections.abc import Sequence

from eval.scoring.sql_text import first_statement, without_distinct

Row = tuple[object, ...]

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
