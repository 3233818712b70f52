"""Opens the database that a command names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tools.databases.database import Database


def open_named(db: str | None, engine: str = "auto") -> "Database":
    """The database at a path, at several paths separated by commas, or at a URL; the bundled example if None.

    Queries run in a separate process, which can be killed. Raises OpenError.
    """
    from tools.databases.open_database import open_database

    if db is None:
        return open_database(_example(), engine=engine, isolated=True)
    parts = [part for part in db.split(",") if part]
    several = len(parts) > 1 and "://" not in db
    return open_database(parts if several else db, engine=engine, isolated=True)


def _example() -> "Path":
    """The example's file, in the cache; in a temporary folder where the cache cannot be written. Raises OpenError."""
    import duckdb

    from decoding.checkpoints.fetch.cache_folder import cache_root
    from tools.example.build import example_database
    from tools.processes.temporary_folders import spill_folder
    from tools.result import OpenError

    try:
        return example_database(cache_root())
    except (OSError, duckdb.Error):
        try:
            return example_database(spill_folder())
        except (OSError, duckdb.Error) as error:
            reason = str(error).strip().splitlines()[0]
            raise OpenError(
                f"the example database cannot be written ({reason}): make room, or name one with --db"
            ) from error
