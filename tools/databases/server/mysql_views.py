"""The columns of views at a MySQL or MariaDB that tells this account nothing of how they are made.

SQLAlchemy asks SHOW CREATE TABLE even for a view's columns, which takes the right SHOW VIEW; who may only SELECT lacks it.
"""

from typing import Any

import sqlalchemy as sa

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
