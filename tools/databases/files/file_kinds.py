"""What a file is, and what its tables are called.

Makes table names out of file and sheet names: plain identifiers, each used once.

Says what a file is, by its first bytes where they tell and by its name where they do not, and lists a folder's sources.
"""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tools.result import OpenError


class TableNames:
    """Remembers the names given out in one database."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}

    @property
    def in_order(self) -> tuple[str, ...]:
        """The names, first given first."""
        return tuple(self._taken.values())

    def take(self, wanted: str, otherwise: str = "") -> str:
        """`wanted` as an identifier that needs no quotes; if taken, `otherwise`; if that is taken too, with a number."""
        names = [plain(wanted), *([plain(otherwise)] if otherwise else [])]
        name = next((name for name in names if name.lower() not in self._taken), None)
        number = 2
        while name is None:
            numbered = f"{names[-1]}_{number}"
            name = numbered if numbered.lower() not in self._taken else None
            number += 1
        self._taken[name.lower()] = name
        return name

    def keep(self, wanted: str, otherwise: str) -> str:
        """`wanted` as it stands, the name that a database gave its table; `otherwise` only if it is taken."""
        if wanted.lower() in self._taken:
            return self.take(otherwise)
        self._taken[wanted.lower()] = wanted
        return wanted


def plain(text: str) -> str:
    """Letters, digits and underscores, not beginning with a digit, never empty."""
    name = re.sub(r"\W+", "_", text.strip()).strip("_") or "table"
    return f"t_{name}" if name[0].isdigit() else name


def distinct(names: list[str]) -> list[str]:
    """Column names with blanks named by position and repetitions (case ignored) numbered."""
    taken: set[str] = set()
    result = []
    for position, name in enumerate(names, 1):
        base = name.strip() or f"column{position}"
        number, candidate = 2, base
        while candidate.lower() in taken:
            candidate, number = f"{base}_{number}", number + 1
        taken.add(candidate.lower())
        result.append(candidate)
    return result


FileKind = Literal["duckdb", "sqlite", "csv", "parquet", "json", "excel"]

_BY_SUFFIX: dict[str, FileKind] = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".txt": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".parquet": "parquet", ".pq": "parquet",
    ".xlsx": "excel", ".xlsm": "excel", ".xlsb": "excel", ".xls": "excel", ".ods": "excel",
}  # fmt: skip
_DATABASES = {".duckdb": "DuckDB", ".ddb": "DuckDB", ".sqlite": "SQLite", ".sqlite3": "SQLite", ".db3": "SQLite"}
READABLE = "DuckDB, SQLite, CSV, TSV, Parquet, JSON and Excel files"


class LeftOut(UserWarning):
    """A file of a folder cannot be read, and the others are opened without it; the message names it and says why."""


class ReadOtherwise(UserWarning):
    """Something in a file was read in one of several ways, or stays text, or is no row; the message names it and says why."""


_FILE_URL = re.compile(r"(?:sqlite|duckdb)(?:\+\w+)?://(?:/(?:file:)?([^?]*))?(?:\?.*)?")


def is_url(source: str) -> bool:
    """Whether a source is a URL and no path."""
    return re.match(r"[A-Za-z][A-Za-z0-9_+.-]*://", source) is not None


def names_a_file(source: str) -> bool:
    """Whether a source is a sqlite:/// or duckdb:/// URL; such a file is opened under its engine's own locks."""
    return _FILE_URL.fullmatch(source) is not None


def path_of(source: str) -> Path:
    """The file or folder that a path or the URL of a file names. Raises OpenError for a URL without a file."""
    match = _FILE_URL.fullmatch(source)
    if match is None:
        return Path(source)
    if match[1] in (None, "", ":memory:"):
        raise OpenError(f"{source} names no file: a database in memory has nothing in it to ask")
    return Path(match[1])


def name_of(given: Sequence[str]) -> str:
    """What a person calls these sources together: by the first one's stem."""
    names = [stem(path_of(source).expanduser().absolute()) for source in given]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def files_of(given: Sequence[str]) -> list[tuple[Path, "FileKind"]]:
    """All files that sources stand for. Raises OpenError where there is nothing to read."""
    return [file for source in given for file in sources(path_of(source).expanduser())]


def stem(path: Path) -> str:
    """The file's name without its suffix, and without both of .csv.gz."""
    name = path.name.removesuffix(".gz")
    return Path(name).stem or name


def file_kind(path: Path) -> FileKind | None:
    """The kind of an existing file, None when it is none of ours. Raises OpenError for one that is empty or unreadable."""
    try:
        if not path.is_file():
            raise OpenError(f"{path} is a pipe or a device; write what comes from it to a file, and name that")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise OpenError(f"cannot read {path}: {error.strerror or error}") from error
    if head[8:12] == b"DUCK":
        return "duckdb"
    if head == b"SQLite format 3\0":
        return "sqlite"
    if head[:4] == b"PAR1":
        return "parquet"
    kind = _BY_SUFFIX.get(Path(path.name.removesuffix(".gz")).suffix.lower())
    if kind is not None and not head:
        raise OpenError(f"{path} is empty")
    return kind


def sources(path: Path) -> list[tuple[Path, FileKind]]:
    """The files that `path` stands for: itself, or what a folder holds (not its subfolders), by name.

    Raises OpenError when there is nothing to read.
    """
    try:
        if not path.exists():
            raise OpenError(f"no such file or folder: {path}")
        entries = sorted(path.iterdir()) if path.is_dir() else None
    except OSError as error:
        raise OpenError(f"cannot read {path}: {error.strerror or error}") from error
    if entries is not None:
        files = [entry for entry in entries if entry.is_file() and not entry.name.startswith(".")]
        found = [(file, kind) for file in files if (kind := _kind_in_folder(file))]
        if not found:
            raise OpenError(f"nothing to read in {path}: put {READABLE} there, or name a file")
        return found
    kind = file_kind(path)
    if kind is None:
        raise OpenError(_unknown(path))
    return [(path, kind)]


def _kind_in_folder(file: Path) -> FileKind | None:
    """As `file_kind`; for a file that cannot be read a `LeftOut` warning, and None."""
    try:
        return file_kind(file)
    except OpenError as error:
        leave_out(file, error)
        return None


def leave_out(file: Path, reason: object) -> None:
    """Warn that a file of a folder is not among the tables."""
    warnings.warn(LeftOut(f"{file.name} is left out: {reason}"), stacklevel=2)


def tell(lines: Sequence[str]) -> None:
    """Warn of how files were read, where that may not be what their owner thinks."""
    for line in lines:
        warnings.warn(ReadOtherwise(line), stacklevel=2)


def _unknown(path: Path) -> str:
    if path.stat().st_size == 0:
        return f"{path} is empty"
    database = _DATABASES.get(path.suffix.lower())
    if database:
        return f"{path} is not a {database} database, though its name says so; is it damaged?"
    return f"cannot tell what {path} is; {READABLE} can be read"
