"""Which tables a statement reads by PostgreSQL's own account: the second lock of hidden tables there.

PostgreSQL takes a lock on every table that it finds in a statement when it analyses it, and shows these locks by the tables'
numbers. So the tables are known whatever their names, comments or the search path say, and before anything runs. What a
function read while the statement ran is locked as well, until the transaction ends, so the locks are looked at afterwards too,
before a row is shown. Columns are not seen this way.
"""

import sqlalchemy as sa

from tools.result import QueryError
from tools.schema import Schema

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
"""What is locked besides tables that may be read, their partitions, and what PostgreSQL keeps beside them."""

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
        connection.exec_driver_sql(_LOCKED)
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
