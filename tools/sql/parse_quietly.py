"""sqlglot's parser without its log lines: here an unsupported statement is a valid result, not a warning on stderr."""

import logging
import threading

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError


class _SilentWhileParsing(logging.Filter):
    """Drops the records of a thread that parses quietly; other threads and other users of sqlglot keep theirs."""

    parsing = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.parsing, "on", False)


logging.getLogger("sqlglot").addFilter(_SilentWhileParsing())


def parse_quietly(sql: str, dialect: str) -> list[exp.Expr]:
    """The statements of `sql`, without the empty ones that stray semicolons leave. Raises SqlglotError."""
    _SilentWhileParsing.parsing.on = True
    try:
        parsed = sqlglot.parse(sql, dialect=dialect)
    except (
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:  # which sqlglot 30 raises for `SELECT {:1}`
        raise SqlglotError("the parser gave up") from error
    finally:
        _SilentWhileParsing.parsing.on = False
    return [statement for statement in parsed if statement is not None and not isinstance(statement, exp.Semicolon)]


def parse_or_nothing(sql: str, dialect: str) -> list[exp.Expr]:
    """The statements of `sql`; none if it cannot be parsed."""
    try:
        return parse_quietly(sql, dialect)
    except (SqlglotError, RecursionError):
        return []
