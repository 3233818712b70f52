"""SQL laid out over several lines, for people to read."""

from contextlib import suppress

from sqlglot import transpile
from sqlglot.errors import SqlglotError


def pretty_sql(sql: str, dialect: str, *, over_lines: bool = True) -> str:
    """The statement with a line for each clause, or in one line; as it is where the parser does not know it.

    >>> print(pretty_sql("SELECT name FROM albums WHERE price > 5", "sqlite"))
    SELECT
      name
    FROM albums
    WHERE
      price > 5
    """
    with suppress(SqlglotError, RecursionError):
        return transpile(sql, read=dialect, write=dialect, pretty=over_lines, normalize_functions=False)[0]
    return sql
