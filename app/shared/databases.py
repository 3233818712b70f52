"""Which database a command means."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.databases.database import Database


def open_named(db: str | None, engine: str = "auto") -> "Database":
    """The database at a path or URL; several paths separated by commas; None: the bundled example. Raises OpenError.

    Queries run in a process of their own, which can be killed.
    """
    from tools.databases.open_database import open_database

    if db is None:
        from decoding.checkpoints.fetch.cache_folder import cache_root
        from tools.example.build import example_database

        return open_database(example_database(cache_root()), engine=engine, isolated=True)
    parts = [part for part in db.split(",") if part]
    several = len(parts) > 1 and "://" not in db
    return open_database(parts if several else db, engine=engine, isolated=True)
