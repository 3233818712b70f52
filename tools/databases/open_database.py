"""The one way to open any source of tables. What an open database can do is in `tools.databases.database`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tools.databases.database import Database
from tools.databases.duckdb.duckdb_database import DuckDBDatabase
from tools.databases.files.file_kinds import FileKind, sources, stem
from tools.databases.files.load_files import load_files
from tools.databases.isolated.isolated_database import IsolatedDatabase
from tools.databases.sqlite.sqlite_database import SQLiteDatabase
from tools.result import OpenError

Engine = Literal["auto", "duckdb", "sqlite"]


def open_database(
    source: str | Path | Sequence[str | Path], *, engine: Engine = "auto", isolated: bool = False
) -> Database:
    """Open a file, several files (each a table or more), a folder of files, or a database URL.

    "auto" opens a DuckDB file as it is, copies every other file into a private DuckDB database, and reaches a URL in its own
    dialect. "duckdb" takes files only; "sqlite" takes one SQLite file and runs SQLite's dialect on it. `isolated`: the queries
    run in processes of their own, which can be killed.
    Raises OpenError, whose one line says what to do.
    """
    given = [source] if isinstance(source, str | Path) else list(source)
    if not given:
        raise OpenError("no database given: name a file, a folder or a URL")
    urls = [text for text in map(str, given) if _is_url(text)]
    if urls and len(given) > 1:
        raise OpenError("a database URL stands alone: give one URL, or files")
    path = _path_of_url(urls[0]) if urls else None
    if urls and path is None:
        database = _open_url(urls[0], engine)
        return IsolatedDatabase(database, "url", urls[0]) if isolated else database
    files = [file for item in (given if path is None else [path]) for file in sources(Path(item).expanduser())]
    if urls and urls[0].startswith("sqlite") and engine == "auto":
        engine = "sqlite"
    opened = _open_files(files, _name(given if path is None else [path]), engine)
    if not isolated:
        return opened
    if isinstance(opened, SQLiteDatabase):
        return IsolatedDatabase(opened, "sqlite", str(files[0][0]))
    return IsolatedDatabase(opened, "duckdb", str(opened.path))


def _is_url(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9_+.-]*://", text) is not None


def _path_of_url(url: str) -> Path | None:
    """The file that a sqlite:/// or duckdb:/// URL names; such a file is opened under its engine's own locks."""
    match = re.fullmatch(r"(?:sqlite|duckdb)(?:\+\w+)?://(?:/(?:file:)?([^?]*))?(?:\?.*)?", url)
    if match is None:
        return None
    if match[1] in (None, "", ":memory:"):
        raise OpenError(f"{url} names no file: a database in memory has nothing in it to ask")
    return Path(match[1])


def _open_url(url: str, engine: Engine) -> Database:
    if re.match("https?:|s3:|gs:|ftp:", url):
        raise OpenError(f"{url} is not a database; download the file and name the copy")
    if engine != "auto":
        raise OpenError(f"the {engine} engine opens files; open a URL with engine auto")
    from tools.databases.server.sqlalchemy_database import (
        open_url,  # SQLAlchemy takes 0.3 s to import and most sources are files
    )

    return open_url(url)


def _open_files(files: list[tuple[Path, FileKind]], name: str, engine: Engine) -> DuckDBDatabase | SQLiteDatabase:
    path, kind = files[0]
    if engine == "sqlite":
        if len(files) > 1 or kind != "sqlite":
            raise OpenError("the sqlite engine opens one SQLite file; use engine auto for anything else")
        return SQLiteDatabase(path, name)
    if len(files) == 1 and kind == "duckdb":
        return DuckDBDatabase(path, name)
    return load_files(files, name)


def _name(given: Sequence[str | Path]) -> str:
    names = [stem(Path(item).expanduser().absolute()) for item in given]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
