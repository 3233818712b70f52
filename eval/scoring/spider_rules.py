"""Spider's rules: execution accuracy and levels of hardness, as in the official script (taoyds/test-suite-sql-eval).

Execution accuracy is that of its `eval_exec_match`. Rows are compared as bags, or as lists if the gold text says ORDER BY;
columns may come in any order; 1 equals 1.0; '1' does not equal 1; floats have no tolerance. Nothing here runs SQL;
`eval/scoring/referee.py` does.

The four levels of hardness are computed from the gold query by the counts of the official script.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.helper import ensure_list

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


Hardness = Literal["easy", "medium", "hard", "extra"]


def hardness(gold: str) -> Hardness | None:
    """The official level of a gold query; None where sqlglot cannot read it.

    The official script counts on a parser of its own. On all 1,034 queries of dev and 6,997 of the 7,000 in train_spider.json
    sqlglot's tree has the same level; of the others that parser refuses one, and misses the OR of two.
    """
    try:
        tree = parse_one(gold, read="sqlite")
    except SqlglotError:
        return None
    is_set = isinstance(tree, exp.SetOperation)
    while isinstance(tree, exp.SetOperation | exp.Subquery):
        tree = tree.this
    if not isinstance(tree, exp.Select):
        return None
    clauses, others = _clauses(tree), _others(tree)
    nested = is_set + sum(isinstance(side, exp.Query) for part in _conditions(tree) for side in part.iter_expressions())
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


_LOGIC = exp.Connector | exp.Paren | exp.Not


def _logic(select: exp.Select, *clauses: str) -> Iterator[exp.Expr]:
    """What AND, OR and NOT connect in these clauses (default: joins, where, having), and these themselves. Sub-queries are not
    looked into."""
    for name in clauses or ("joins", "where", "having"):
        for clause in ensure_list(select.args.get(name)):
            if condition := clause.args.get("on" if name == "joins" else "this"):
                yield from condition.walk(prune=lambda node: not isinstance(node, _LOGIC))


def _conditions(select: exp.Select, *clauses: str) -> list[exp.Expr]:
    return [node for node in _logic(select, *clauses) if not isinstance(node, _LOGIC)]


def _clauses(select: exp.Select) -> int:
    """How many there are of WHERE, GROUP BY, ORDER BY, LIMIT, further tables, OR and LIKE."""
    present = sum(bool(select.args.get(name)) for name in ("where", "group", "order", "limit"))
    words = sum(isinstance(node, exp.Or | exp.Like) for node in _logic(select))
    return present + len(select.args.get("joins") or ()) + words


def _others(select: exp.Select) -> int:
    """One each for several aggregates, selected columns, WHERE conditions and GROUP BY columns. In conditions the official
    script counts NOT instead of aggregates."""
    grouped, ordered = (select.args[name].expressions if select.args.get(name) else [] for name in ("group", "order"))
    aggregates = sum(len(list(each.find_all(exp.AggFunc))) for each in (*select.expressions, *grouped, *ordered))
    aggregates += sum(isinstance(node, exp.Not) for node in _logic(select))
    return sum(
        count > 1 for count in (aggregates, len(select.expressions), len(_conditions(select, "where")), len(grouped))
    )


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
