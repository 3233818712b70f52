"""PostgreSQL and MariaDB under attack: a database of their own, a folder next to it, and all that must stay as it is."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from tests.tools.attacks.assault import DDL
from tests.tools.databases.server.servers import Server, program

NAME = "attacked"
_READER = {
    "postgresql": ("CREATE ROLE reader LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"),
    "mariadb": ("CREATE USER reader@localhost", f"GRANT SELECT ON {NAME}.* TO reader@localhost"),
}
_NO_READER = {"postgresql": "DROP ROLE reader", "mariadb": "DROP USER reader@localhost"}
_LEFT_BEHIND = {  # what no dump holds: settings, and locks that a pooled connection would keep
    "postgresql": (
        "SELECT name, setting FROM pg_file_settings ORDER BY seqno",
        "SELECT name, setting FROM pg_settings ORDER BY name",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
    ),
    "mariadb": ("SHOW GLOBAL VARIABLES", "SELECT is_free_lock('x')"),
}
_RANDOM = ("\\restrict", "\\unrestrict")  # begin lines with a key that pg_dumpall makes up each time
_STATISTICS = ("innodb_index_stats", "innodb_table_stats")  # the server writes these when it likes


@dataclass(frozen=True, slots=True)
class Attacked:
    """A server with people and pets. `folder`: what the server may read and write, with a secret in it."""

    server: Server
    folder: Path

    @property
    def dialect(self) -> str:
        return "postgres" if self.server.kind == "postgresql" else "mysql"

    def url(self, user: str) -> str:
        """`user`: "reader", who may only read, or "superuser"."""
        return self.server.url_of(self.server.superuser if user == "superuser" else user, NAME)

    def state(self) -> str:
        """Roles, tables, rows, code and grants of all databases as SQL; settings; locks."""
        dumped = subprocess.run(self._dump(), check=True, capture_output=True, text=True).stdout
        with _connected(self.url("superuser")) as connection:
            left = [connection.exec_driver_sql(query).all() for query in _LEFT_BEHIND[self.server.kind]]
        lines = (line for line in dumped.splitlines() if not line.startswith(_RANDOM))
        return "\n".join([*lines, *map(str, left)])

    def _dump(self) -> list[str]:
        where, user = self.server.folder, self.server.superuser
        if self.server.kind == "postgresql":
            return [program("pg_dumpall"), "-h", str(where), "-U", user]
        left_out = [f"--ignore-table=mysql.{table}" for table in _STATISTICS]
        everything = ("--all-databases", "--routines", "--events", "--skip-dump-date", *left_out)
        return [program("mariadb-dump"), "--no-defaults", f"--socket={where}/socket", "-u", user, *everything]


@contextmanager
def attacked(server: Server) -> Iterator[Attacked]:
    """The database and its reader, gone again afterwards."""
    folder = server.folder / NAME
    folder.mkdir()
    (folder / "secret.csv").write_text("word\nTOP-SECRET\n")
    shutil.chown(folder, server.folder.owner())
    with _connected(server.url) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {NAME}")
    target = Attacked(server, folder)
    with _connected(target.url("superuser")) as connection:
        for statement in (*DDL, *_READER[server.kind]):
            connection.exec_driver_sql(statement)
    try:
        yield target
    finally:
        with _connected(server.url) as connection:
            connection.exec_driver_sql(f"DROP DATABASE {NAME}")
            connection.exec_driver_sql(_NO_READER[server.kind])
        shutil.rmtree(folder)


@contextmanager
def _connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
