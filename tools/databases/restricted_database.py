"""A database of which only some tables and columns exist for those who ask; see `tools/guard/visibility.py`."""

import re
from dataclasses import replace

from tools.databases.database import Database
from tools.guard.guard import judged
from tools.guard.respell import Respelt
from tools.guard.visibility import Visibility, narrowed
from tools.result import DEFAULT_LIMITS, Limits, OpenError, QueryError, Result
from tools.schema import Schema


class RestrictedDatabase:
    """`database`, seen through `visibility`; see `tools.databases.database.Database`. Raises OpenError for names that it
    lacks.
    """

    def __init__(self, database: Database, visibility: Visibility) -> None:
        self.name, self.dialect = database.name, database.dialect
        self._database = database
        self._seen = visibility.seen(database.schema())
        database.hold_to(self._seen)
        self._hidden = _column_and_table_names(database.schema()) - _column_and_table_names(self._seen)

    def schema(self) -> Schema:
        """What may be seen of the schema."""
        return self._seen

    def hold_to(self, seen: Schema) -> None:
        """See less still."""
        self._database.hold_to(seen)
        self._seen = seen

    def execute(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> Result | QueryError:
        """Run one guarded query; see `Database.execute`."""
        statement = self._narrowed(sql)
        if isinstance(statement, QueryError):
            return self._told(statement, sql)
        outcome = self._database.execute(statement.text, limits)
        return self._told(_placed(outcome, statement), sql) if isinstance(outcome, QueryError) else outcome

    def explain(self, sql: str, limits: Limits = DEFAULT_LIMITS) -> QueryError | None:
        """Guard and bind without running; see `Database.explain`."""
        statement = self._narrowed(sql)
        if isinstance(statement, QueryError):
            return self._told(statement, sql)
        problem = self._database.explain(statement.text, limits)
        return self._told(_placed(problem, statement), sql) if problem else None

    def prepare(self) -> None:
        """Get ready for the first query."""
        self._database.prepare()

    def interrupt(self) -> None:
        """Stop every query that runs now."""
        self._database.interrupt()

    def close(self) -> None:
        """Close the database behind."""
        self._database.close()

    def _narrowed(self, sql: str) -> Respelt | QueryError:
        try:
            whole = self._database.schema()
        except OpenError as error:
            return QueryError("connection", str(error))
        statement = judged(sql, self.dialect, self._seen)
        return statement if isinstance(statement, QueryError) else narrowed(statement, whole, self._seen)

    def _told(self, error: QueryError, sql: str) -> QueryError:
        """The error without names that the asker may not know."""
        said = {word.casefold() for word in re.findall(r"\w+", sql)}
        secret = self._hidden - said
        candidates = tuple(each for each in error.candidates if not _words(each) & self._hidden)
        message = error.message if not _words(error.message) & secret else f"the query does not run ({error.kind})"
        return replace(error, message=message, candidates=candidates)


def _placed(error: QueryError, statement: Respelt) -> QueryError:
    """The error with its place in the statement that was given, not in the narrowed one."""
    return replace(error, position=statement.origin(error.position))


def restricted(database: Database, tables: tuple[str, ...], hidden: tuple[str, ...]) -> Database:
    """The database itself where nothing is to be hidden. Raises OpenError, and then the database is closed."""
    if not tables and not hidden:
        return database
    try:
        return RestrictedDatabase(database, Visibility(tables, hidden))
    except OpenError:
        database.close()
        raise


def _column_and_table_names(schema: Schema) -> set[str]:
    tables = {table.name.casefold() for table in schema.tables}
    return tables | {column.name.casefold() for table in schema.tables for column in table.columns}


def _words(text: str) -> set[str]:
    return {text.casefold(), *(word.casefold() for word in re.findall(r"\w+", text))}
