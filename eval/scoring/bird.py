"""BIRD's scores by the rules of the official scripts: EX (DAMO-ConvAI `bird/llm/src/evaluation.py`), soft F1 and R-VES
(bird-bench/mini_dev `evaluation_f1.py`, `evaluation_ves.py`). Pure functions of rows and times; nothing here runs SQL.

All scores are fractions: 1.0 is what the official scripts print as 100.

BIRD's rules, as in the official scripts (DAMO-ConvAI `bird/llm/src`, bird-bench/mini_dev).
"""

import json
import math
from collections.abc import Mapping, Sequence

from eval.scoring.rules import Marks, Predicted, Row, Rules, one_line

# (ratio, reward) of a correct query that takes 1/ratio of the gold query's time, best first; below the last, it is 0.25.
_REWARDS = ((2.0, 1.25), (1.0, 1.0), (0.5, 0.75), (0.25, 0.5))


def bird_match(gold_rows: Sequence[Row], predicted_rows: Sequence[Row]) -> bool:
    """Whether both hold the same set of rows. Row order and duplicates do not matter; column order and count do."""
    return set(gold_rows) == set(predicted_rows)


def soft_f1(gold_rows: Sequence[Row], predicted_rows: Sequence[Row]) -> float:
    """F1 of cells, with rows paired by position after duplicates are dropped; two empty results score 1.

    A row's counts are divided by the gold row's width; a row without a partner counts as 1 missing or 1 superfluous.
    """
    if not gold_rows and not predicted_rows:
        return 1.0
    gold, predicted = list(dict.fromkeys(gold_rows)), list(dict.fromkeys(predicted_rows))
    pairs = [_row_counts(*pair) for pair in zip(gold, predicted, strict=False)]
    hit = sum(pair[0] for pair in pairs)
    superfluous = sum(pair[1] for pair in pairs) + max(0, len(predicted) - len(gold))
    missing = sum(pair[2] for pair in pairs) + max(0, len(gold) - len(predicted))
    precision = hit / (hit + superfluous) if hit + superfluous else 0.0
    recall = hit / (hit + missing) if hit + missing else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _row_counts(gold: Row, predicted: Row) -> tuple[float, float, float]:
    """(predicted cells found in gold, predicted cells not found, gold cells not predicted), each over gold's width."""
    hits = sum(cell in gold for cell in predicted)
    missed = sum(cell not in predicted for cell in gold)
    return hits / len(gold), (len(predicted) - hits) / len(gold), missed / len(gold)


def time_reward(ratios: Sequence[float]) -> float:
    """The reward of a correct query from repeated ratios gold time / predicted time, without outliers beyond 3 sigma.

    If all ratios are equal, all count; the official script would divide by zero.
    """
    ratio = _mean(_without_outliers(ratios))
    return next((reward for least, reward in _REWARDS if ratio >= least), 0.25)


def r_ves(rewards: Sequence[float]) -> float:
    """The reward-based valid efficiency score: the mean of the rewards' square roots. A wrong query's reward is 0."""
    return _mean([math.sqrt(reward) for reward in rewards])


def _without_outliers(values: Sequence[float]) -> list[float]:
    mean = _mean(values)
    sigma = math.sqrt(_mean([(value - mean) ** 2 for value in values]))
    return [value for value in values if abs(value - mean) < 3 * sigma] or list(values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


SEPARATOR = "\t----- bird -----\t"


class BirdRules(Rules):
    """Compares rows as sets, and adds soft F1 and the time that correct SQL takes; both queries share one deadline."""

    levels = ("simple", "moderate", "challenging")
    shared_deadline = True
    has_soft_f1 = True
    has_ves = True

    def marks(self, gold: str, gold_rows: Sequence[Row], rows: Sequence[Row]) -> Marks:
        return Marks(bird_match(gold_rows, rows), soft_f1(gold_rows, rows))

    def files(self, records: Sequence[Predicted]) -> Mapping[str, str]:
        """predict_dev.json and dev_gold.sql, as `evaluation.py --predicted_sql_path OUT/` reads them."""
        predictions = {
            str(index): f"{self.prediction(record.sql)}{SEPARATOR}{record.db_id}"
            for index, record in enumerate(records)
        }
        return {
            "predict_dev.json": json.dumps(predictions, indent=2) + "\n",
            "dev_gold.sql": "".join(f"{one_line(record.gold)}\t{record.db_id}\n" for record in records),
        }


BIRD = BirdRules()
