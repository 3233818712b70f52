"""The modes of a MySQL or MariaDB session, without those that change where words and texts end.

`NO_BACKSLASH_ESCAPES`, `ANSI_QUOTES` or `ORACLE` would make the server read another statement than the guard did. A mode that
says what a query may mean stays as the server has it. The modes are set when a connection is made, before SQLAlchemy looks at
them.
"""

from typing import Any

import sqlalchemy as sa

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
