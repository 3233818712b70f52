"""What a query may not leave behind in its session: locks, settings, temporary things, rights that it took back.

A rollback gives none of a session's own locks back, so each connection is emptied when it returns to the pool. One that cannot
be emptied is closed.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import PoolResetState

from tools.result import QueryError

_EMPTIED = {"postgresql": "DISCARD ALL", "mysql": "DO RELEASE_ALL_LOCKS()", "mariadb": "DO RELEASE_ALL_LOCKS()"}
_KEPT = """SELECT CASE
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
    kept = connection.exec_driver_sql(_KEPT).scalar()
    return QueryError("refused", f"refused by PostgreSQL: the statement {kept}") if kept else None
