"""Opens a SQLite file in SQLite's own dialect."""

from collections.abc import Sequence

from tools.databases.files.file_kinds import files_of, is_url, name_of, names_a_file
from tools.databases.sqlite.sqlite_database import SQLiteDatabase
from tools.result import OpenError


def open_sqlite(sources: Sequence[str]) -> SQLiteDatabase:
    """The one SQLite file that the sources name. Raises OpenError."""
    if is_url(sources[0]) and not names_a_file(sources[0]):
        raise OpenError("the sqlite engine opens files; open a URL with engine auto")
    files = files_of(sources)
    path, kind = files[0]
    if len(files) > 1 or kind != "sqlite":
        raise OpenError("the sqlite engine opens one SQLite file; use engine auto for anything else")
    return SQLiteDatabase(path, name_of(sources))
