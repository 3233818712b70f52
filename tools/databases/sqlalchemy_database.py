"""Any other database, through SQLAlchemy: every query in a fresh transaction that may only read and is rolled back.

The guard is the main lock here, for no client can bind a server. The second lock is the server's own: a read-only
transaction where the dialect has one (PostgreSQL, MySQL, MariaDB, Oracle, SQLite), a time limit, and on PostgreSQL a cursor
that takes one SELECT only. SQL Server, and dialects not listed in `_SESSION`, have neither: give the program an account that
may only read, which is the true boundary everywhere.

SQL goes through `exec_driver_sql` without parameters, so that a colon or a percent sign in a literal means itself.
"""

import datetime
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Self

import sqlalchemy as sa
from sqlglot.dialects.dialect import Dialect

from tools.databases.choices import fetch_rows
from tools.databases.engine_errors import query_error, stop_error
from tools.databases.guarded_database import GuardedDatabase
from tools.databases.server_engines import (
    OWN_SCHEMA_ALONE,
    WITHOUT_POWERS,
    PostgreSQLReads,
    StopQuery,
    function_made,
    give_back,
    hold_modes,
    kept_after,
    own_operator,
    run_inside,
)
from tools.databases.sqlalchemy_schema import MANY_SCHEMAS, own_types, read_schema
from tools.processes import Watchdog
from tools.result import Limits, OpenError, QueryError, Result
from tools.schema import Schema

CONNECT_TIMEOUT_S = 10
SPILL_PER_MEMORY = 4
_IS_INSIDE = "sqlagent_is_inside"  # the option of a connection whose queries run inside a function
_NO_PARAMETERS = {"no_parameters": True}  # a percent sign means itself
SCHEMA_LIMITS = Limits(deadline_s=120.0, max_rows=2**31)

# What a server's own administrator allows is lowered and never raised. Disk only a superuser may bound. A server on Linux looks
# every half second whether we are still there: a query whose process was killed ends with it.
_BOUNDED = """SELECT
set_config('work_mem', least(pg_size_bytes(current_setting('work_mem')), {sort_memory}) / 1024 || 'kB', true),
CASE WHEN own.rolsuper AND current_setting('temp_file_limit') = '-1'
    THEN set_config('temp_file_limit', {disk} / 1024 || 'kB', true) END,
CASE WHEN version() LIKE '%linux%' AND current_setting('client_connection_check_interval', true) IS NOT NULL
    THEN set_config('client_connection_check_interval', '500', true) END FROM pg_roles own WHERE own.rolname = current_user"""
_DIGITS = "SET SESSION div_precision_increment = 14"  # of averages and quotients, which have four otherwise
_SQLGLOT_NAMES = {"postgresql": "postgres", "mssql": "tsql", "mariadb": "mysql"}
_SESSION = {
    "postgresql": (
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET TRANSACTION READ ONLY",
        "SET LOCAL statement_timeout = {ms}",
        _BOUNDED,
        "SET LOCAL standard_conforming_strings = on",
        WITHOUT_POWERS,
    ),
    "mysql": (
        "SET SESSION TRANSACTION READ ONLY",
        "SET SESSION max_execution_time = {ms}",
        "SET SESSION sql_select_limit = {rows}",
        _DIGITS,
        "START TRANSACTION READ ONLY",
    ),
    "mariadb": (
        "SET SESSION TRANSACTION READ ONLY",
        "SET SESSION max_statement_time = {s}",
        "SET SESSION max_session_mem_used = LEAST(@@GLOBAL.max_session_mem_used, {memory})",
        "SET SESSION sql_select_limit = {rows}",  # rows past the cap would be sent, and read when the cursor is closed
        _DIGITS,
        "START TRANSACTION READ ONLY",
    ),
    "oracle": ("SET TRANSACTION READ ONLY",),
    "mssql": ("SET LOCK_TIMEOUT {ms}", "SET QUOTED_IDENTIFIER ON"),
    "sqlite": ("PRAGMA query_only = ON",),
}
_EXPLAIN = {"postgresql": "EXPLAIN ", "mysql": "EXPLAIN ", "mariadb": "EXPLAIN ", "sqlite": "EXPLAIN QUERY PLAN "}
_TYPES: dict[type, str] = {
    bool: "BOOLEAN", int: "INTEGER", float: "DOUBLE", Decimal: "NUMERIC", str: "TEXT", bytes: "BLOB",
    datetime.date: "DATE", datetime.datetime: "TIMESTAMP", datetime.time: "TIME", datetime.timedelta: "INTERVAL",
    dict: "JSON", list: "ARRAY",
}  # fmt: skip
_DRIVERS = {
    "postgresql": {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"},
    "mysql": {"pymysql": "pymysql", "mysqldb": "mysqlclient", "mysqlconnector": "mysql-connector-python"},
    "mariadb": {"pymysql": "pymysql", "mysqldb": "mysqlclient", "mariadbconnector": "mariadb"},
    "mssql": {"pyodbc": "pyodbc", "pymssql": "pymssql"},
    "oracle": {"oracledb": "oracledb"},
}
_DIALECT_PACKAGES = {
    "bigquery": "sqlalchemy-bigquery", "clickhouse": "clickhouse-sqlalchemy", "databricks": "databricks-sqlalchemy",
    "hive": "pyhive[hive]",
    "redshift": "sqlalchemy-redshift", "snowflake": "snowflake-sqlalchemy", "trino": "trino[sqlalchemy]",
}  # fmt: skip
_CONNECT_TIMEOUT_NAMES = {
    "psycopg": "connect_timeout", "psycopg2": "connect_timeout", "pymysql": "connect_timeout",
    "mysqldb": "connect_timeout", "mysqlconnector": "connection_timeout", "pymssql": "login_timeout",
}  # fmt: skip


class SQLAlchemyDatabase(GuardedDatabase):
    """One database behind an SQLAlchemy engine. A server's driver may need this program's environment variables."""

    needs_environment = True

    def __init__(self, engine: sa.Engine, name: str) -> None:
        super().__init__(name, _EXPLAIN.get(_backend(engine)))
        sqlalchemy_name = engine.dialect.name
        wanted = _SQLGLOT_NAMES.get(sqlalchemy_name, sqlalchemy_name)
        self.dialect = wanted if Dialect.get(wanted) else ""
        self.has_schemas = sqlalchemy_name in MANY_SCHEMAS
        self._engine = engine
        self._reads: PostgreSQLReads | None = None
        self._is_held = False

    def hold_to(self, seen: Schema) -> None:
        """PostgreSQL says which tables a statement reads; other servers have no such lock. See `Database.hold_to`."""
        super().hold_to(seen)
        self._is_held = True
        if self.dialect == "postgres":
            try:
                with self._reading(SCHEMA_LIMITS) as connection:
                    self._reads = PostgreSQLReads(connection, seen)
            except sa.exc.SQLAlchemyError as error:
                raise OpenError(f"cannot look at the tables of {self.name}: {_one_line(error)}") from error

    @property
    def location(self) -> str:
        return self._engine.url.render_as_string(hide_password=False)

    @classmethod
    def reopened(cls, location: str, name: str) -> Self:
        return cls(_connected(location), name)

    def close(self) -> None:
        """Stop what runs and leave the server."""
        self.interrupt()
        self._engine.dispose()

    def _run(self, sql: str, limits: Limits, prefix: str = "") -> Result | QueryError:
        """Run `prefix + sql` past the server's own locks alone."""
        started, watchdog = time.perf_counter(), None
        try:
            with self._reading(limits) as connection, self._watched(connection, limits) as watchdog:
                objection = own_operator(connection, sql)
                objection = objection or (self._reads.objection(connection, sql) if self._reads else None)
                if objection is not None:
                    return objection
                result, columns = self._started(connection, sql, limits, prefix)
                rows, truncated = fetch_rows(result.fetchmany, limits)
                objection = self._objection_afterwards(connection)
                if objection is not None:
                    return objection
            wall_ms = (time.perf_counter() - started) * 1000
            return Result(columns, _types(rows, len(columns)), rows, truncated, wall_ms)
        except (sa.exc.SQLAlchemyError, OSError, MemoryError, ValueError) as error:
            return self._as_data(error, watchdog, prefix + sql, limits)

    def _started(
        self, connection: sa.Connection, sql: str, limits: Limits, prefix: str
    ) -> tuple[sa.CursorResult[Any], tuple[str, ...]]:
        """The rows to come of `prefix + sql`, and the headings of its columns. Raises SQLAlchemyError."""
        if not prefix and connection.get_execution_options().get(_IS_INSIDE):
            return run_inside(connection, sql, limits.max_rows + 1)
        options = _NO_PARAMETERS | {"stream_results": not prefix}
        result = connection.exec_driver_sql(prefix + sql, execution_options=options)
        return result, tuple(result.keys())

    def _objection_afterwards(self, connection: sa.Connection) -> QueryError | None:
        """Why the rows of the query that has just run may not be shown, by what the server says that it touched."""
        objection = kept_after(connection) or (self._reads.objection_afterwards(connection) if self._reads else None)
        if objection is not None:
            connection.invalidate()
        return objection

    @contextmanager
    def _watched(self, connection: sa.Connection, limits: Limits) -> Iterator[Watchdog]:
        """A watchdog for one query. A connection whose query was stopped is not used again: a late cancellation would meet the
        next one.
        """
        watchdog = Watchdog(limits.deadline_s, StopQuery(self._engine, connection))
        try:
            with self._registered(watchdog), watchdog:
                yield watchdog
        finally:
            if watchdog.reason is not None:
                connection.invalidate()

    def _as_data(self, error: Exception, watchdog: Watchdog | None, sql: str, limits: Limits) -> QueryError:
        found = query_error(_reason(error), sql, self.schema())
        reason = watchdog.reason if watchdog else None
        stopped = stop_error("timeout" if found.kind == "timeout" else reason, error, limits)
        if stopped:
            return stopped
        if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
            return QueryError("connection", found.message)
        return found

    def _read_schema(self) -> Schema:
        try:
            with self._reading(SCHEMA_LIMITS) as connection:
                self._look_in_own_schema(connection)
                return Schema(read_schema(connection), self.dialect, own_types(connection))
        except sa.exc.SQLAlchemyError as error:
            raise OpenError(f"cannot read the tables of {self.name}: {_one_line(error)}") from error

    @contextmanager
    def _reading(self, limits: Limits) -> Iterator[sa.Connection]:
        """A connection in a transaction that may only read, and that is rolled back."""
        memory = limits.memory_limit_mb << 20
        units = {"ms": max(1, int(limits.deadline_s * 1000)), "s": limits.deadline_s, "rows": limits.max_rows + 1}
        units |= {"memory": memory, "sort_memory": memory // 8, "disk": SPILL_PER_MEMORY * memory}
        with self._engine.connect() as connection:
            try:
                is_inside = _backend(self._engine) == "postgresql" and function_made(connection)
                connection = connection.execution_options(**{_IS_INSIDE: is_inside})
                for statement in _SESSION.get(_backend(self._engine), ()):
                    connection.exec_driver_sql(statement.format(**units), execution_options=_NO_PARAMETERS)
                if self._is_held:
                    self._look_in_own_schema(connection)
                yield connection
            finally:
                connection.rollback()

    def _look_in_own_schema(self, connection: sa.Connection) -> None:
        if self.dialect == "postgres":
            connection.exec_driver_sql(OWN_SCHEMA_ALONE)


def _backend(engine: sa.Engine) -> str:
    """SQLAlchemy's name for the server's kind; `mysql://` leads to a MariaDB as well."""
    return "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name


def open_server(sources: Sequence[str]) -> SQLAlchemyDatabase:
    """The database of one URL; see `open_url`. Raises OpenError for what is no database, too."""
    if re.match("https?:|s3:|gs:|ftp:", sources[0]):
        raise OpenError(f"{sources[0]} is not a database; download the file and name the copy")
    return open_url(sources[0])


def open_url(url: str) -> SQLAlchemyDatabase:
    """Connect to `url`. Raises OpenError for a bad URL, a missing driver (naming its package) and a failed connection."""
    engine = _connected(url)
    shown = engine.url.set(query={}).render_as_string(hide_password=True)
    return SQLAlchemyDatabase(engine, engine.url.database or engine.url.host or shown)


def _connected(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(_with_known_scheme(url))
    except (sa.exc.ArgumentError, ValueError):  # whose messages hold the URL, or what it takes for the port
        form = "dialect://user:password@host:port/database, and @, : and / in a password as %40, %3A and %2F"
        raise OpenError(f"this database URL cannot be read; write {form}") from None
    shown = parsed.set(query={}).render_as_string(hide_password=True)
    engine = _engine(parsed)
    try:
        with engine.connect():
            return engine
    except (sa.exc.SQLAlchemyError, OSError) as error:
        engine.dispose()
        raise OpenError(f"cannot connect to {shown}: {_one_line(error)}") from error


def _with_known_scheme(url: str) -> str:
    """`postgres://`, which hosting companies write, is no scheme of SQLAlchemy's."""
    return "postgresql://" + url.removeprefix("postgres://") if url.startswith("postgres://") else url


def _engine(url: sa.URL) -> sa.Engine:
    backend, _, driver = url.drivername.partition("+")
    known = _DRIVERS.get(backend, {})
    for candidate in [driver] if driver or not known else known:
        name = f"{backend}+{candidate}" if candidate else backend
        timeout = _CONNECT_TIMEOUT_NAMES.get(candidate)
        arguments: dict[str, Any] = {timeout: CONNECT_TIMEOUT_S} if timeout and timeout not in url.query else {}
        try:
            if candidate == "psycopg":
                arguments["prepare_threshold"] = None  # what the driver prepares does not outlive DISCARD ALL
            return give_back(
                hold_modes(sa.create_engine(url.set(drivername=name), connect_args=arguments, pool_pre_ping=True))
            )
        except ModuleNotFoundError:
            continue
        except sa.exc.NoSuchModuleError as error:
            package = _DIALECT_PACKAGES.get(backend, f"the package that brings SQLAlchemy's {backend} dialect")
            raise OpenError(f"no driver for {backend}:// here; install it: pip install {package}") from error
    package = known.get(driver) or next(iter(known.values()), driver or backend)
    raise OpenError(f"no driver for {url.drivername}:// here; install it: pip install '{package}'")


def _reason(error: BaseException) -> str:
    """What the driver said, without SQLAlchemy's frame around it."""
    return (
        str(getattr(error, "orig", None) or error).strip().split("\n(Background on this error")[0]
        or type(error).__name__
    )


def _one_line(error: BaseException) -> str:
    return " ".join(_reason(error).split())


def _types(rows: tuple[tuple[object, ...], ...], width: int) -> tuple[str, ...]:
    """Drivers tell types by numbers of their own; a column is called by the Python type of its first value."""
    firsts = (next((row[index] for row in rows if row[index] is not None), None) for index in range(width))
    return tuple("NULL" if value is None else _TYPES.get(type(value), type(value).__name__.upper()) for value in firsts)
