"""The one way to open any source of tables. What an open database can do, and the kinds: `tools.databases.database`."""

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name

from tools.databases.database import DATABASE_KINDS, Database, DatabaseKind
from tools.databases.files.file_kinds import is_url
from tools.databases.files.sheets import DETECTED, Choices, Sheet
from tools.databases.guarded_database import GuardedDatabase
from tools.databases.isolated.isolated_database import IsolatedDatabase
from tools.result import OpenError


def open_database(
    source: str | Path | Sequence[str | Path], *, engine: str = "auto", isolated: bool = False
) -> Database:
    """Open a file, several files (each a table or more), a folder of files, or a database URL.

    `engine` is the name of a kind in `DATABASE_KINDS`. "auto" takes the kind that recognises the source: it opens a DuckDB file
    as it is, copies every other file into a private DuckDB database, and reaches a URL in its own dialect. "duckdb" takes files
    only; "sqlite" takes one SQLite file and runs SQLite's dialect on it. `isolated`: files are copied and queries run in
    processes of their own, which can be killed.
    Raises OpenError, whose one line says what to do.
    """
    given = [str(source)] if isinstance(source, str | Path) else [str(each) for each in source]
    if not given:
        raise OpenError("no database given: name a file, a folder or a URL")
    if len(given) > 1 and any(map(is_url, given)):
        raise OpenError("a database URL stands alone: give one URL, or files")
    kind = _kind_of(given, engine)
    opened = _opened((kind.open_apart if isolated else None) or kind.open, given)
    return IsolatedDatabase(opened) if isolated else opened


def open_uploads(files: Sequence[Path], choices: Choices = DETECTED) -> tuple[Database, tuple[Sheet, ...]]:
    """Open files that a stranger brought, and say how those of CSV and Excel were read. All are copied, DuckDB's too, so
    that no process but bounded ones reads what is in them. Raises OpenError."""
    from tools.databases.files.open_files import copy_apart_all

    given = [str(file) for file in files]
    if _kind_of(given, "auto") is not DATABASE_KINDS["duckdb"]:
        return open_database(given, isolated=True), ()
    database, sheets = copy_apart_all(given, choices)
    return IsolatedDatabase(database), sheets


def _kind_of(given: Sequence[str], engine: str) -> DatabaseKind:
    if engine == "auto":
        return next(kind for kind in reversed(DATABASE_KINDS.values()) if kind.recognises(given))
    if engine not in DATABASE_KINDS:
        raise OpenError(f"unknown engine {engine}: choose one of auto, {', '.join(DATABASE_KINDS)}")
    return DATABASE_KINDS[engine]


def _opened(place: str, given: Sequence[str]) -> GuardedDatabase:
    try:
        opener = resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise OpenError(f"{place}, which opens {given[0]}, cannot be imported: {error}") from error
    opened = opener(given)
    if not isinstance(opened, GuardedDatabase):
        raise OpenError(f"{place} opened a {type(opened).__name__}, which is no GuardedDatabase: nothing guards it")
    return opened
