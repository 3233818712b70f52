"""Builds the example database as a DuckDB file, and keeps one copy per version of its sources in a cache folder."""

import hashlib
import os
from pathlib import Path
from typing import Any

import duckdb

from tools.example import rows as data
from tools.example.rows import Dice

SEED = 1877  # the year of the phonograph
FILE_NAME = "needle_and_groove.duckdb"

Row = tuple[Any, ...]


def rows_by_table() -> dict[str, list[Row]]:
    """Every table's rows, parents before children; the same on every machine."""
    dice = Dice(SEED)
    artists, stores, customers = data.artists(dice), data.stores(), data.customers(dice)
    albums, employees = data.albums(dice, artists), data.employees(dice, stores)
    orders = data.orders(dice, customers, employees)
    lines, concerts = data.order_lines(dice, orders, albums), data.concerts(dice, artists)
    return {
        "genres": data.genres(),
        "artists": artists,
        "albums": albums,
        "tracks": data.tracks(dice, albums),
        "stores": stores,
        "employees": employees,
        "customers": customers,
        "orders": orders,
        "order_lines": lines,
        "reviews": data.reviews(dice, orders, lines),
        "concerts": concerts,
        "tickets": data.tickets(dice, concerts, customers),
    }


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
        connection.execute(Path(__file__).with_name("schema.sql").read_text(encoding="utf-8"))
        for table, rows in rows_by_table().items():
            # DuckDB checks a key to the same table against the rows of earlier statements only.
            batches = [[row] for row in rows] if table == "employees" else [rows]
            for batch in batches:
                _insert(connection, table, batch)


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    unnested = ", ".join("unnest(?)" for _ in columns)
    connection.execute(f"INSERT INTO {table} SELECT {unnested}", columns)


def version() -> str:
    """Eight hex digits that change when the sources of the data or the DuckDB release (its file format) change."""
    digest = hashlib.sha256(duckdb.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.*")):
        if source.suffix in (".py", ".sql"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:8]


def example_database(cache_dir: Path) -> Path:
    """The example database's file under `cache_dir`, built on first use (about a second)."""
    path = cache_dir / f"example-{version()}" / FILE_NAME
    if not path.exists():
        build(path)
    return path
