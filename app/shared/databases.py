"""Opens the database that a command names."""

import glob
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.shared import output

if TYPE_CHECKING:
    from tools.databases.database import Database


def open_named(db: str | Sequence[str] | None, engine: str = "auto") -> "Database":
    """The database at what `--db` names: files, folders, patterns such as `sales/*.csv`, several of these, also separated by
    commas, or one URL; the bundled example if None.

    Queries run in a separate process, which can be killed. Files of a folder that cannot be read are named on stderr.
    Raises OpenError.
    """
    from tools.databases.open_database import open_database

    if not db:
        return open_database(_example(), engine=engine, isolated=True)
    given = [source for each in ([db] if isinstance(db, str) else db) for source in _sources(each)]
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        database = open_database(given, engine=engine, isolated=True)
    for each in noted:
        output.report(f"sqlagent: {each.message}")
    return database


def files_named(db: str | Sequence[str] | None) -> str:
    """What changes when the data of files change that `--db` names, or of the example; empty for servers, and where
    SQLAGENT_VALUES=off says that no values are to be kept. Raises OpenError if the example cannot be written.
    """
    from tools.databases.files.file_kinds import is_url
    from tools.databases.reading.kept_values import identity_of

    given = [source for each in ([db] if isinstance(db, str) else db or ()) for source in _sources(each)]
    if os.environ.get("SQLAGENT_VALUES") == "off" or any(is_url(source) for source in given):
        return ""
    return identity_of([Path(source).expanduser() for source in given] if given else [_example()])


def values_kept(database: "Database", files: str) -> "Database":
    """The database; values of its columns are kept in the cache folder. files: of `files_named` before it was opened."""
    from decoding.checkpoints.fetch.cache_folder import cache_root
    from tools.databases.reading.kept_values import keep_values

    keep_values(database, cache_root() / "values", files)
    return database


def _sources(given: str) -> list[str]:
    """What one `--db` stands for. A file that exists is meant as it is spelt, whatever signs its name has."""
    from tools.databases.files.file_kinds import is_url

    if is_url(given) or Path(given).expanduser().exists():
        return [given]
    parts = [part for part in given.split(",") if part]
    if len(parts) > 1:
        return [source for part in parts for source in _sources(part)]
    return sorted(glob.glob(str(Path(given).expanduser()))) or [given]


def _example() -> Path:
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
