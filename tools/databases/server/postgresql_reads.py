"""Which tables a statement reads by PostgreSQL's own account: the second lock of hidden tables there.

PostgreSQL takes a lock on every table that it finds in a statement when it analyses it, and shows these locks by the tables'
numbers. So the tables are known whatever their names, comments or the search path say, and before anything runs. Columns are
not seen this way.
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

OWN_SCHEMA_ALONE = "SELECT set_config('search_path', quote_ident(current_schema()), true)"
"""From here to the transaction's end a name without a schema means a table of the default schema, and no other."""


class PostgreSQLReads:
    """The numbers of the tables in `seen`, and of what visible views read. Raises SQLAlchemyError."""

    def __init__(self, connection: sa.Connection, seen: Schema) -> None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        names = [".".join(map(quote, table.name.split(".", 1))) for table in seen.tables]
        names += [quote(table.name) for table in seen.tables if "." in table.name]
        visible = set(connection.execute(_VISIBLE, {"names": names}).scalars())
        connection.exec_driver_sql(_LOCKED)
        self._may = visible | set(connection.exec_driver_sql(_LOCKED).scalars())  # what looking takes itself

    def objection(self, connection: sa.Connection, sql: str) -> QueryError | None:
        """Why the one SELECT `sql` may not run. Raises SQLAlchemyError where PostgreSQL does not understand it."""
        connection.exec_driver_sql(f"PREPARE {_NAME} AS {sql}", execution_options={"no_parameters": True})
        connection.exec_driver_sql(f"DEALLOCATE {_NAME}")
        read = set(connection.exec_driver_sql(_LOCKED).scalars())
        if read <= self._may:
            return None
        return QueryError("refused", "refused by PostgreSQL: the statement reads a table that may not be read")
