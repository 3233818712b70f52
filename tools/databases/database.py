"""What an open database can do. The engines live in their own files; `tools.databases.open_database` opens any source."""

from typing import Protocol

from tools.result import DEFAULT_LIMITS, Limits, QueryError, Result
from tools.schema import Schema


class Database(Protocol):
    """An open source of tables. Every method may be called from any thread; nothing is ever written."""

    @property
    def name(self) -> str:
        """What a person calls this database: the file's stem or the URL's database name."""
        ...

    @property
    def dialect(self) -> str:
        """sqlglot's name for the SQL that `execute` takes."""
        ...

    def schema(self) -> Schema:
        """Tables, keys, comments and samples; read once, then remembered."""
        ...

    def hold_to(self, seen: Schema) -> None:
        """From now on nothing outside `seen`, a part of the schema, may be read: the engine's own lock, where it has one.

        It stands behind the guard's rewriting and does not replace it: `*` still means every column. Called once, before the
        first query. Raises OpenError.
        """
        ...

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Run one guarded, read-only statement. Bad SQL comes back as data, never as an exception."""
        ...

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Guard and bind the statement without running it; None means that it would run."""
        ...

    def interrupt(self) -> None:
        """Stop every running `execute` of this database: it returns kind "interrupted"."""
        ...

    def close(self) -> None:
        """Release the connection and any temporary copy. Closing twice does nothing."""
        ...
