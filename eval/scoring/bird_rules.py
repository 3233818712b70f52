"""BIRD's rules, as in the official scripts (DAMO-ConvAI `bird/llm/src`, bird-bench/mini_dev)."""

import json
from collections.abc import Mapping, Sequence

from eval.scoring.bird_score import bird_match, soft_f1
from eval.scoring.rules import Marks, Predicted, Row, Rules
from eval.scoring.sql_text import one_line

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
