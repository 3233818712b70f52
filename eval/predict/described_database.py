"""Opens the database of a question together with what its data set says of its columns."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.databases.reading.annotations import Annotations, with_annotations
from tools.schema import ColumnRef

FOLDER = "database_description"


def open_described(file: Path, engine: Literal["duckdb", "sqlite"]) -> Database:
    """The database, with the descriptions of its columns if BIRD's folder of them lies beside the file. Raises OpenError."""
    database = open_database(file, engine=engine)
    schema = database.schema()
    known = {(table.name.casefold(), column.name.casefold()) for table in schema.tables for column in table.columns}
    said = {ref: text for ref, text in _descriptions(file.parent / FOLDER) if ref in known}
    return with_annotations(database, Annotations(descriptions=said))


def _descriptions(folder: Path) -> Iterator[tuple[ColumnRef, str]]:
    """By (table, column) in lower case: the column's description and that of its values, as in BIRD's training set."""
    for file in sorted(folder.glob("*.csv")):
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            for row in csv.DictReader(lines):
                parts = (row.get("column_description"), row.get("value_description"))
                text = " ".join(part.strip() for part in parts if part and part.strip())
                name = (row.get("original_column_name") or "").strip()
                if text:
                    yield (file.stem.strip().casefold(), name.casefold()), text
