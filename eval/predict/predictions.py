"""The files that the official scripts take, one entry for each question, in order, never empty."""

import json
from collections.abc import Sequence
from pathlib import Path

from eval.predict.record import Record
from eval.scoring.sql_text import one_line

# Stands for "no prediction": the official scripts need something, and this runs on no database.
PLACEHOLDER = "SELECT no_prediction"
BIRD_SEPARATOR = "\t----- bird -----\t"


def spider_line(sql: str) -> str:
    """`sql` on one line without tabs, as pred.txt holds it and as it is scored; the placeholder when nothing is left."""
    return one_line(sql) or PLACEHOLDER


def bird_text(sql: str) -> str:
    """`sql` as predict_dev.json holds it and as it is scored."""
    return sql.strip() or PLACEHOLDER


def write_spider(records: Sequence[Record], out: Path) -> None:
    """pred.txt, and gold.txt beside it, as `evaluation.py --gold gold.txt --pred pred.txt` takes them."""
    _write_lines(out / "pred.txt", [spider_line(record.sql) for record in records])
    _write_lines(out / "gold.txt", [f"{one_line(record.gold)}\t{record.db_id}" for record in records])


def write_bird(records: Sequence[Record], out: Path) -> None:
    """predict_dev.json, and dev_gold.sql beside it, as `evaluation.py --predicted_sql_path OUT/` takes them."""
    predictions = {
        str(index): f"{bird_text(record.sql)}{BIRD_SEPARATOR}{record.db_id}" for index, record in enumerate(records)
    }
    (out / "predict_dev.json").write_text(json.dumps(predictions, indent=2) + "\n", encoding="utf-8")
    _write_lines(out / "dev_gold.sql", [f"{one_line(record.gold)}\t{record.db_id}" for record in records])


def _write_lines(file: Path, lines: Sequence[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="replace")
