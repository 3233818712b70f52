"""What a query gives back: rows, or an error as data. Data only: nothing here runs SQL."""

import re
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
    got after the query's own ORDER BY keys, so that equal rows have one order."""

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
    """What one query may use: seconds of wall time, rows returned, MiB of engine memory; and rows that the engine's plan may
    expect in one of its steps, before the query runs (0: any number)."""

    deadline_s: float = 30.0
    max_rows: int = 1000
    memory_limit_mb: int = 1024
    expected_rows: int = 0


DEFAULT_LIMITS = Limits()


class OpenError(Exception):
    """A source cannot be opened; the message is one line that says what to do, without the password of a URL."""

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(message))


_PASSWORD = re.compile(r"([A-Za-z][\w+.-]*:/{1,2}(?!user:password@)[^\s/:@]*):\S*@")  # the exception: how to write one


def without_passwords(text: str) -> str:
    """The text with the password of every URL left out, up to the last @ of its word: passwords may hold one, too.

    >>> without_passwords("cannot connect to postgresql://ada:p@ss:word@127.0.0.1:5432/shop: refused")
    'cannot connect to postgresql://ada:***@127.0.0.1:5432/shop: refused'
    """
    return _PASSWORD.sub(r"\1:***@", text)
