"""Opens the database that a command names, and the audit log of what its user asks."""

import getpass
import glob
import os
import sqlite3
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.shared import output

if TYPE_CHECKING:
    from agent.observe.audit import AuditLog, Trail
    from tools.databases.database import Database
    from tools.databases.isolated_database import IsolatedDatabase
    from tools.databases.open_database import BareNamedDatabase


OFF = "off"


def log_path() -> Path | None:
    """`$SQLAGENT_LOG`, otherwise `log.sqlite` in the cache folder; None if the log is switched off."""
    from decoding.checkpoints.cache_folder import cache_root

    named = os.environ.get("SQLAGENT_LOG")
    if named == OFF:
        return None
    return Path(named).expanduser() if named else cache_root() / "log.sqlite"


def open_log() -> "AuditLog | None":
    """The log; None, with a line on stderr, if it cannot be opened, so that questions are answered all the same."""
    from agent.observe.audit import AuditLog

    path = log_path()
    if path is None:
        return None
    try:
        return AuditLog(path)
    except (OSError, sqlite3.Error) as error:
        print(f"sqlagent: no log is kept, for {path} cannot be written: {error}", file=sys.stderr)
        return None


def trail(way: str) -> "Trail | None":
    """A trail for what this user does from now on with the command `way`."""
    return trails(way)()


def trails(way: str) -> "Callable[[], Trail | None]":
    """A function that makes such a trail for each of several askers; the log is opened once."""
    from agent.observe.audit import Trail

    log, user = open_log(), _user()
    return lambda: Trail(log, user, way) if log else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id may have no name
        return f"user {os.getuid()}"


def open_named(db: str | Sequence[str] | None, engine: str = "auto") -> "IsolatedDatabase | BareNamedDatabase":
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
    from tools.databases.choices import identity_of
    from tools.databases.files.file_kinds import is_url

    given = [source for each in ([db] if isinstance(db, str) else db or ()) for source in _sources(each)]
    if os.environ.get("SQLAGENT_VALUES") == "off" or any(is_url(source) for source in given):
        return ""
    return identity_of([Path(source).expanduser() for source in given] if given else [_example()])


def kept(
    database: "IsolatedDatabase | BareNamedDatabase",
    files: str,
    restrict: "Callable[[Database], Database]" = lambda whole: whole,
) -> "Database":
    """What `restrict` leaves of the database; its schema, if that is all, and values of its columns are kept in the cache
    folder. files: of `files_named` before it was opened. Raises what `restrict` raises.
    """
    from decoding.checkpoints.cache_folder import cache_root
    from tools.databases.choices import SchemaCache, keep_values

    folder = cache_root() / "values"
    seen = restrict(database)
    if files and seen is database:
        database.keep_schema(SchemaCache(folder, files))
    keep_values(seen, folder, files)
    return seen


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

    from decoding.checkpoints.cache_folder import cache_root
    from tools.example.build import example_database
    from tools.processes import spill_folder
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
