"""What PostgreSQL and MySQL need of their own: modes, views, what a statement reads, sessions, how it is stopped.

**Modes** (MySQL, MariaDB). `NO_BACKSLASH_ESCAPES`, `ANSI_QUOTES` or `ORACLE` would make the server read another statement than
the guard did. They are removed when a connection is made, before SQLAlchemy looks at them. A mode that only changes what a
query means stays as the server has it.

**Views** (MySQL, MariaDB). SQLAlchemy asks SHOW CREATE TABLE even for a view's columns, which needs the right SHOW VIEW. For an
account that may only SELECT, the columns are read without it.

**What a statement reads** (`PostgreSQLReads`, the second lock of hidden tables there). PostgreSQL takes a lock on every table
that it finds in a statement when it analyses it, and lists these locks by the tables' numbers. So the tables are known before
anything runs, whatever their names, comments or the search path say. What a function read while the statement ran is locked as
well, until the transaction ends, so the locks are looked at again before a row is shown. Columns are not seen this way.

**A superuser's query** runs as a role that reads tables and cannot be left. A superuser reads files and runs programs even in a
read-only transaction, and whatever role its session took by SET ROLE or SET SESSION AUTHORIZATION, `set_config` takes it back
in the middle of a statement. PostgreSQL forbids both inside a function that runs as its owner. So the query runs inside one: a
temporary function of the role `pg_read_all_data`, made and rolled back with the transaction that calls it.

**Operators.** Whoever may make objects in a PostgreSQL database may make an operator that calls any function, under any signs.
The signs of a statement, and those that words like BETWEEN stand for, are compared with the operators that names lead to and
that came with neither the server nor an extension; the types of what stands at their sides are not looked at.

**Sessions.** A query may leave nothing: locks, settings, temporary things, rights that it took back. A rollback releases
none of a session's own locks, so each connection is reset when it returns to the pool. One that cannot be reset is closed.

**Stopping.** The server is asked to cancel a query; if that does not help, its connection is ended.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import PoolResetState

from tools.result import QueryError
from tools.schema import Schema

_KEPT = (
    "ERROR_FOR_DIVISION_BY_ZERO", "NO_UNSIGNED_SUBTRACTION", "NO_ZERO_DATE", "NO_ZERO_IN_DATE", "ONLY_FULL_GROUP_BY",
    "PAD_CHAR_TO_FULL_LENGTH", "STRICT_ALL_TABLES", "STRICT_TRANS_TABLES", "TIME_ROUND_FRACTIONAL",
    "TIME_TRUNCATE_FRACTIONAL",
)  # fmt: skip
_PLAIN_MODES = "SET SESSION sql_mode = CONCAT_WS(',', {})".format(
    ", ".join(f"IF(FIND_IN_SET('{mode}', @@sql_mode), '{mode}', NULL)" for mode in _KEPT)
)


def hold_modes(engine: sa.Engine) -> sa.Engine:
    """The engine, whose connections to a MySQL or MariaDB will have these modes."""
    if engine.dialect.name in ("mysql", "mariadb"):
        sa.event.listen(engine, "connect", _set_modes, insert=True)
    return engine


def _set_modes(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute(_PLAIN_MODES)
    cursor.close()


_COLUMNS = """SELECT c.table_name, c.column_name, c.data_type, c.column_type, c.is_nullable FROM information_schema.columns c
JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
WHERE c.table_schema = database() AND t.table_type = 'VIEW' ORDER BY c.table_name, c.ordinal_position"""


class _Spelt(sa.types.UserDefinedType[Any]):
    """A type of which nothing is known but its spelling."""

    cache_ok = True

    def __init__(self, spelling: str) -> None:
        self.spelling = spelling

    def get_col_spec(self, **_: object) -> str:
        return self.spelling


def view_columns(connection: sa.Connection) -> dict[tuple[str | None, str], list[dict[str, Any]]]:
    """What SQLAlchemy's reflection says of the columns of each view, one query for all. Raises SQLAlchemyError."""
    found: dict[tuple[str | None, str], list[dict[str, Any]]] = {}
    for view, name, kind, spelling, nullable in connection.exec_driver_sql(_COLUMNS):
        type_ = sa.LargeBinary() if kind.endswith(("blob", "binary")) else _Spelt(spelling.upper())
        found.setdefault((None, view), []).append({"name": name, "type": type_, "nullable": nullable == "YES"})
    return found


_NAME = "sqlagent_looked_at"
_LOCKED = "SELECT relation FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
_VISIBLE = sa.text("""
WITH RECURSIVE visible (oid) AS (
  SELECT to_regclass(name)::oid FROM unnest(CAST(:names AS text[])) name
  UNION
  SELECT d.refobjid FROM visible JOIN pg_rewrite r ON r.ev_class = visible.oid
  JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
)
SELECT oid FROM visible WHERE oid IS NOT NULL
""")

_TOUCHED = sa.text("""
WITH RECURSIVE may (oid) AS (
  SELECT unnest(CAST(:may AS bigint[]))::oid
  UNION
  SELECT inhrelid FROM may JOIN pg_inherits ON inhparent = may.oid
)
SELECT relation FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation NOT IN (
  SELECT oid FROM may
  UNION SELECT indexrelid FROM may JOIN pg_index ON indrelid = may.oid
  UNION SELECT reltoastrelid FROM may JOIN pg_class c ON c.oid = may.oid
)
""")
"""What is locked besides tables that may be read, their partitions, and what PostgreSQL keeps with them."""

OWN_SCHEMA_ALONE = "SELECT set_config('search_path', quote_ident(current_schema()), true)"
"""From here to the transaction's end a name without a schema means a table of the default schema, and no other."""
_OBJECTION = QueryError("refused", "refused by PostgreSQL: the statement reads a table that may not be read")


class PostgreSQLReads:
    """The numbers of the tables in `seen`, and of what visible views read. Raises SQLAlchemyError."""

    def __init__(self, connection: sa.Connection, seen: Schema) -> None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        names = [".".join(map(quote, table.name.split(".", 1))) for table in seen.tables]
        names += [quote(table.name) for table in seen.tables if "." in table.name]
        visible = set(connection.execute(_VISIBLE, {"names": names}).scalars())
        for looking in (_LOCKED, _OWN_OPERATORS):
            connection.exec_driver_sql(looking).scalars().all()
        self._may = visible | set(connection.exec_driver_sql(_LOCKED).scalars())  # what looking takes itself
        self._may |= self._touched(connection)

    def objection(self, connection: sa.Connection, sql: str) -> QueryError | None:
        """Why the one SELECT `sql` may not run. Raises SQLAlchemyError where PostgreSQL does not understand it."""
        connection.exec_driver_sql(f"PREPARE {_NAME} AS {sql}", execution_options={"no_parameters": True})
        connection.exec_driver_sql(f"DEALLOCATE {_NAME}")
        read = set(connection.exec_driver_sql(_LOCKED).scalars())
        return None if read <= self._may else _OBJECTION

    def objection_afterwards(self, connection: sa.Connection) -> QueryError | None:
        """Why nothing may be shown of the query that has just run in this transaction. Raises SQLAlchemyError."""
        return _OBJECTION if self._touched(connection) else None

    def _touched(self, connection: sa.Connection) -> set[int]:
        return set(connection.execute(_TOUCHED, {"may": sorted(self._may)}).scalars())


_OWN_OPERATORS = """SELECT DISTINCT oprname FROM pg_operator o
WHERE oprnamespace <> 'pg_catalog'::regnamespace AND pg_operator_is_visible(o.oid) AND NOT EXISTS
(SELECT FROM pg_depend d WHERE d.objid = o.oid AND d.classid = 'pg_operator'::regclass AND d.deptype = 'e')"""
OWN_OPERATOR = "refused: in this database the operator"
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_STAR = re.compile(r"(?:[(,.]|\b(?:select|all|distinct))\s*\*(?![-+*/<>=~!@#%^&|`?])", re.IGNORECASE)
"""All columns, or rows; here no operator can stand."""
_SIGNS = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
_NEVER_LAST = re.compile(r"[^~!@#%^&|`?]+[-+]")
"""Signs that PostgreSQL takes for an operator and a sign of the next number."""
_IN_WORDS = {
    "in": {"=", "<>"}, "case": {"="}, "nullif": {"="}, "using": {"="}, "natural": {"="}, "distinct": {"="},
    "between": {"<", "<=", ">", ">="}, "like": {"~~", "!~~"}, "ilike": {"~~*", "!~~*"}, "similar": {"~", "!~"},
}  # fmt: skip


def own_operator(connection: sa.Connection, sql: str) -> QueryError | None:
    """Why the one statement `sql`, whose texts are in plain quotes, may not run at a PostgreSQL. Raises SQLAlchemyError."""
    if connection.dialect.name != "postgresql":
        return None
    called = sorted(operators(sql) & set(connection.exec_driver_sql(_OWN_OPERATORS).scalars()))
    return (
        QueryError("refused", f"{OWN_OPERATOR} {called[0]} calls a function of its own", called[0]) if called else None
    )


def operators(sql: str) -> set[str]:
    """The operators of a statement without comments, as PostgreSQL reads them.

    >>> sorted(operators("SELECT count(*), a =- 1, '@@' || b FROM t WHERE c != 2 AND c NOT BETWEEN 1 AND @-3"))
    ['-', '<', '<=', '<>', '=', '>', '>=', '@-', '||']
    """
    bare, found = _STAR.sub(" ", _QUOTED.sub(" ", sql)), set[str]()
    for signs in _SIGNS.findall(bare):
        while _NEVER_LAST.fullmatch(signs):
            found.add(signs[-1])
            signs = signs[:-1]
        found.add("<>" if signs == "!=" else signs)
    for word in re.findall(r"\w+", bare.lower()):
        found |= _IN_WORDS.get(word, set())
    return found


_READER = """FROM pg_roles reader, pg_roles own
WHERE reader.rolname = 'pg_read_all_data' AND own.rolname = current_user AND own.rolsuper"""
_SPELT = sa.text("""SELECT format_type(CAST(oid AS oid), -1)
FROM unnest(CAST(:types AS bigint[])) WITH ORDINALITY AS t (oid, place) ORDER BY place""")
_DESCRIBING = "psycopg"  # the driver that tells a cursor's columns before it fetches a row
_POSTGRESQL_SUPERUSER_NAME = "pg_temp.sqlagent_read(text, bigint)"
_FUNCTION = (
    f"""CREATE FUNCTION {_POSTGRESQL_SUPERUSER_NAME} RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER AS '
DECLARE found record; seen bigint := 0;
BEGIN
  FOR found IN EXECUTE $1 LOOP
    RETURN NEXT found; seen := seen + 1;
    EXIT WHEN seen >= $2;
  END LOOP;
END'""",
    f"ALTER FUNCTION {_POSTGRESQL_SUPERUSER_NAME} OWNER TO pg_read_all_data",
)

WITHOUT_POWERS = f"""SELECT set_config('search_path', (SELECT string_agg(quote_ident(name), ',') FROM
unnest(current_schemas(false)) name), true), set_config('row_security', 'off', true), set_config('role', reader.rolname, true)
{_READER}"""
"""From here to the transaction's end a superuser is a role that reads tables. Names keep their meaning ("$user" is another
now), and rows that the role would not be shown are an error. Outside the function a statement can take its own role back.
"""


def function_made(connection: sa.Connection) -> bool:
    """Make the function, for a superuser and in a transaction that may still write. False where none is needed, or where there
    can be none: on a standby, without PL/pgSQL, before PostgreSQL 14, by another driver. Raises SQLAlchemyError.
    """
    if connection.dialect.driver != _DESCRIBING or connection.exec_driver_sql(f"SELECT 1 {_READER}").scalar() is None:
        return False
    try:
        with connection.begin_nested():
            for statement in _FUNCTION:
                connection.exec_driver_sql(statement)
    except sa.exc.DBAPIError:
        return False
    return True


def run_inside(connection: sa.Connection, sql: str, rows: int) -> tuple[sa.CursorResult[Any], tuple[str, ...]]:
    """The first `rows` rows of the one SELECT `sql`, from inside the function, and the headings of its columns.

    Raises SQLAlchemyError, also for a column of rows without a type, which no function can return.
    """
    declared = connection.exec_driver_sql(sql, execution_options={"no_parameters": True, "stream_results": True})
    headings, description = tuple(declared.keys()), declared.cursor.description if declared.cursor else None
    declared.close()  # a cursor of which nothing was fetched has run nothing
    types = connection.execute(_SPELT, {"types": [entry[1] for entry in description or ()]}).scalars()
    columns = ", ".join(f"c{place} {type_}" for place, type_ in enumerate(types))
    called = sa.text(f"SELECT * FROM pg_temp.sqlagent_read(:sql, :rows) AS inside ({columns})")
    given = {"sql": sql, "rows": rows}
    return connection.execute(called, given, execution_options={"stream_results": True}), headings


_EMPTIED = {"postgresql": "DISCARD ALL", "mysql": "DO RELEASE_ALL_LOCKS()", "mariadb": "DO RELEASE_ALL_LOCKS()"}
_GIVEN_BACK_KEPT = """SELECT CASE
WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) THEN 'took a lock'
WHEN current_setting('transaction_read_only') = 'off' THEN 'may write'
WHEN current_setting('is_superuser') = 'on' AND EXISTS (SELECT FROM pg_roles WHERE rolname = 'pg_read_all_data')
    THEN 'took the rights of a superuser' END"""


def give_back(engine: sa.Engine) -> sa.Engine:
    """The engine, whose connections to PostgreSQL, MySQL and MariaDB will be emptied after every use."""
    statement = _EMPTIED.get(engine.dialect.name)

    def empty(connection: Any, _: object, state: PoolResetState) -> None:
        if state.terminate_only:
            return
        connection.rollback()
        if engine.dialect.name == "postgresql":
            connection.autocommit = True  # it runs in no transaction
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        if engine.dialect.name == "postgresql":
            connection.autocommit = False

    if statement is not None:
        sa.event.listen(engine, "reset", empty)
    return engine


def kept_after(connection: sa.Connection) -> QueryError | None:
    """What the query that has just run in this transaction did that none may, as PostgreSQL alone tells. Raises
    SQLAlchemyError.
    """
    if connection.dialect.name != "postgresql":
        return None
    kept = connection.exec_driver_sql(_GIVEN_BACK_KEPT).scalar()
    return QueryError("refused", f"refused by PostgreSQL: the statement {kept}") if kept else None


PATIENCE_S = 0.3
"""How long a server may take to cancel a query before its connection is ended from another one."""
_END = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL CONNECTION {}", "mariadb": "KILL CONNECTION {}"}


class StopQuery:
    """Called from another thread, again and again until the query that runs on `connection` has ended."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        self._engine, self._end = engine, _END.get(engine.dialect.name)
        self._server_id = _server_id(driver)
        cancels = (getattr(driver, name, None) for name in ("cancel", "interrupt"))
        self._cancel: Callable[[], object] = next((cancel for cancel in cancels if cancel), self._kill)
        self._told_s: float | None = None

    def __call__(self) -> None:
        """Raises nothing: a query that has ended meanwhile, or a server that is gone, is what was wanted."""
        self._told_s = self._told_s or monotonic()
        with suppress(Exception):  # drivers have errors of their own
            self._cancel()
        if self._end and self._server_id and monotonic() - self._told_s > PATIENCE_S:
            self._do(self._end)
            self._end = None

    def _kill(self) -> None:
        if self._server_id and self._engine.dialect.name in ("mysql", "mariadb"):
            self._do("KILL QUERY {}")

    def _do(self, statement: str) -> None:
        with suppress(sa.exc.SQLAlchemyError, OSError), self._engine.connect() as connection:
            connection.exec_driver_sql(statement.format(self._server_id))


def _server_id(driver: Any) -> int | None:
    """What the server calls the connection; None where the driver does not tell."""
    info = getattr(driver, "info", None)
    for owner, name in ((info, "backend_pid"), (driver, "get_backend_pid"), (driver, "thread_id")):
        found = getattr(owner, name, None)
        if found is not None:
            return int(found() if callable(found) else found)
    return None
