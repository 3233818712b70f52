"""What a query gives back: rows, or an error as data. Data only: nothing here runs SQL."""

from dataclasses import dataclass
from typing import Any, Literal

ErrorKind = Literal[
    "refused",
    "syntax",
    "unknown_table",
    "unknown_column",
    "ambiguous_column",
    "unknown_function",
    "type",
    "timeout",
    "memory",
    "interrupted",
    "connection",
    "other",
]


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of one query; `truncated` says that the row cap cut them, `wall_ms` includes fetching. `tie_keys`: what the engine
    got behind the query's own ORDER BY keys, so that equal rows have one order."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool
    wall_ms: float
    tie_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryError:
    """Why a query gave no rows.

    `name` is the table, column or function at fault; `position` a 0-based character offset into the SQL;
    `candidates` are names that exist and may be meant, best first.
    """

    kind: ErrorKind
    message: str
    name: str | None = None
    position: int | None = None
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may use: seconds of wall time, rows returned, MiB of engine memory."""

    deadline_s: float = 30.0
    max_rows: int = 1000
    memory_limit_mb: int = 1024


DEFAULT_LIMITS = Limits()


class OpenError(Exception):
    """A source cannot be opened; the message is one line that says what to do."""
