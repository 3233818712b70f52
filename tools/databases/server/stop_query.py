"""Stops a query that runs at a server: asks the server to cancel it, and ends its connection where that does not help."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import sqlalchemy as sa

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
