"""sqlglot without its log lines: here an unsupported statement is a valid result, not a warning on stderr."""

import logging
import sys

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token

_OURS = ("tools.", "agent.", "ui.", "eval.")


class _SilentForUs(logging.Filter):
    """Drops the records of calls that come from here, whether they parse or write SQL; other users of sqlglot keep theirs."""

    def filter(self, record: logging.LogRecord) -> bool:
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            if str(frame.f_globals.get("__name__")).startswith(_OURS):
                return False
        return True


logging.getLogger("sqlglot").addFilter(_SilentForUs())


def parse_quietly(sql: str, dialect: str, tokens: list[Token] | None = None) -> list[exp.Expr]:
    """The statements of `sql`, without the empty ones that stray semicolons leave. Raises SqlglotError.

    `tokens`: those of `sql`, where they are known.
    """
    try:
        reader = Dialect.get_or_raise(dialect)
        parsed = reader.parser().parse(reader.tokenize(sql) if tokens is None else tokens, sql)
    except (SqlglotError, RecursionError):
        raise
    except (
        Exception
    ) as error:  # whatever a parser of this size may raise: sqlglot 30 has an assertion at `SELECT 1 |> UNION`
        raise SqlglotError("the parser gave up") from error
    return [statement for statement in parsed if statement is not None and not isinstance(statement, exp.Semicolon)]


def parse_or_nothing(sql: str, dialect: str) -> list[exp.Expr]:
    """The statements of `sql`; none if it cannot be parsed."""
    try:
        return parse_quietly(sql, dialect)
    except (SqlglotError, RecursionError):
        return []
