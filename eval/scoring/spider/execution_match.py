"""Spider's execution accuracy, the rules of the official script (taoyds/test-suite-sql-eval, `eval_exec_match`).

Rows are compared as bags, or as lists when the gold text says ORDER BY; columns may come in any order; 1 equals 1.0;
'1' does not equal 1; floats have no tolerance. Nothing here runs SQL: see `eval/scoring/referee.py`.
"""

import re
from collections import Counter
from collections.abc import Sequence

from eval.scoring.sql_text import first_statement, without_distinct

Row = tuple[object, ...]

_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_SPLIT_OPERATORS = (("> =", ">="), ("< =", "<="), ("! =", "!="))


def prepare_gold(sql: str) -> str:
    """The gold query as it is run: operators glued, first statement only, DISTINCT dropped, the current year 2020."""
    for split, glued in _SPLIT_OPERATORS:
        sql = sql.replace(split, glued)
    return _CURRENT_YEAR.sub("2020", without_distinct(first_statement(sql)))


def prepare_prediction(sql: str) -> str:
    """The prediction as it is run: as the gold query, after every "value" in it became "1".

    That replacement is the official script's own and hits names too: a lower-case column `value` scores wrong.
    """
    return prepare_gold(plug_in_value(sql))


def plug_in_value(sql: str) -> str:
    """The official script's first act on a prediction, before execution and exact match alike."""
    return sql.replace("value", "1")


def order_matters(gold: str) -> bool:
    """True when the gold text holds "order by" anywhere, be it in a sub-query or a literal."""
    return "order by" in gold.lower()


def spider_match(gold_rows: Sequence[Row], predicted_rows: Sequence[Row], ordered: bool) -> bool:
    """True when some order of the prediction's columns makes the two results equal: as lists if `ordered`, else as bags.

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
    """The official quick rejection: rows equal once each row is sorted by its cells' text and type.

    It is stricter than equality of values: (1, 1.5) and (1.0, 1.5) sort differently, so they are judged different.
    """
    gold, predicted = [_sorted_cells(row) for row in gold_rows], [_sorted_cells(row) for row in predicted_rows]
    return gold == predicted if ordered else set(gold) == set(predicted)


def _sorted_cells(row: Row) -> Row:
    return tuple(sorted(row, key=lambda cell: f"{cell}{type(cell)}"))


def _columns_can_be_matched(gold_rows: Sequence[Row], predicted_rows: Sequence[Row]) -> bool:
    """Search a bijection of columns that makes the bags of rows equal, one gold column after the other.

    A partial choice stays alive only while the rows cut to the chosen columns are equal as bags.
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
    """Columns still free, one of each content: equal columns are interchangeable, trying both would be exponential."""
    free: dict[Row, int] = {}
    for index, column in enumerate(columns):
        if index not in chosen:
            free.setdefault(column, index)
    return list(free.values())
