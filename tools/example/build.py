"""The example database, a record shop: `schema.sql` makes its tables, and `rows.json.xz` holds their rows.

The rows are invented. Each table has its columns there, parents before children; days, times and amounts are texts.
"""

import hashlib
import json
import lzma
import os
from pathlib import Path
from typing import Any

import duckdb

FILE_NAME = "needle_and_groove.duckdb"
_HERE = Path(__file__).parent


def columns_by_table() -> dict[str, list[list[Any]]]:
    """Every table's columns in the order of its definition."""
    found: dict[str, list[list[Any]]] = json.loads(lzma.decompress((_HERE / "rows.json.xz").read_bytes()))
    return found


def build(path: Path) -> None:
    """Write the database to `path`, replacing it in one step: a reader sees the old file or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    unfinished.unlink(missing_ok=True)
    try:
        _write(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(path: Path) -> None:
    # Small blocks: each index takes at least one, and 256 KiB blocks make a file five times the size.
    with duckdb.connect(path, config={"default_block_size": "16384"}) as connection:
        connection.execute((_HERE / "schema.sql").read_text(encoding="utf-8"))
        for table, columns in columns_by_table().items():
            # DuckDB checks a key to the same table against the rows of earlier statements only.
            one_by_one = table == "employees"
            batches = [[[cell] for cell in row] for row in zip(*columns, strict=True)] if one_by_one else [columns]
            for batch in batches:
                unnested = ", ".join("unnest(?)" for _ in batch)
                connection.execute(f"INSERT INTO {table} SELECT {unnested}", batch)


def version() -> str:
    """Eight hex digits that change when the example or the DuckDB release (its file format) change."""
    digest = hashlib.sha256(duckdb.__version__.encode())
    for source in sorted(_HERE.glob("*.*")):
        if source.suffix in (".py", ".sql", ".xz"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:8]


def example_database(cache_dir: Path) -> Path:
    """The example database's file under `cache_dir`, built on first use (a quarter of a second)."""
    path = cache_dir / f"example-{version()}" / FILE_NAME
    if not path.exists():
        build(path)
    return path
