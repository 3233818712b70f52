"""Spider's rules, as in the official script (taoyds/test-suite-sql-eval)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.scoring.rules import PLACEHOLDER, ExactMatch, Marks, Predicted, Row, Rules
from eval.scoring.spider.clauses import UnreadableError
from eval.scoring.spider.exact_match import exact_match, load_schemas
from eval.scoring.spider.execution_match import order_matters, prepare_gold, prepare_prediction, spider_match
from eval.scoring.sql_text import one_line


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
