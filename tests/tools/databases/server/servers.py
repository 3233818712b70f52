"""PostgreSQL and MariaDB for tests: each server with its own folder and unix socket, run by an unprivileged user."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import sqlalchemy as sa

PATIENCE_S = 60
_SUPERUSER = {"postgresql": "admin", "mariadb": "root"}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `url` is of a superuser; `folder` is the server's own."""

    kind: str
    folder: Path

    @property
    def superuser(self) -> str:
        return _SUPERUSER[self.kind]

    @property
    def url(self) -> str:
        return self.url_of(self.superuser)

    def url_of(self, user: str, database: str = "shop") -> str:
        if self.kind == "postgresql":
            return f"postgresql+psycopg://{user}@/{database}?host={self.folder}"
        return f"mariadb+pymysql://{user}@localhost/{database}?unix_socket={self.folder}/socket"


@contextmanager
def running(kind: str) -> Iterator[Server]:
    """A server with an empty database `shop`. Raises FileNotFoundError where its programs are not installed."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-"))  # short, for a socket's path has 107 bytes
    server = Server(kind, folder)
    try:
        if os.getuid() == 0:  # neither server is run by root
            shutil.chown(folder, "nobody")
        command = _postgresql(folder) if kind == "postgresql" else _mariadb(folder)
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, **_silent(), **_unprivileged())
        try:
            _create_database(server, process)
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)  # waits for no client
            process.wait(PATIENCE_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgresql(folder: Path) -> Sequence[str]:
    data = str(folder / "data")
    _run(program("initdb"), "-D", data, "-A", "trust", "-U", "admin", "-E", "UTF8", "--locale=C", "--no-sync")
    switched_off = ("fsync=off", "listen_addresses=", "max_locks_per_transaction=1024")
    return [program("postgres"), "-D", data, "-k", str(folder), *(f"--{each}" for each in switched_off)]


def _mariadb(folder: Path) -> Sequence[str]:
    where = (
        "--no-defaults",
        f"--datadir={folder / 'data'}",
        "--innodb-log-file-size=4M",
        "--innodb-flush-method=nosync",
    )
    _run(program("mariadb-install-db"), *where, "--auth-root-authentication-method=normal", "--skip-test-db")
    return [
        program("mariadbd"),
        *where,
        f"--socket={folder / 'socket'}",
        f"--pid-file={folder / 'pid'}",
        "--character-set-server=utf8mb4",
        "--skip-networking",
    ]


def program(name: str) -> str:
    """Its path. Debian keeps PostgreSQL's programs, and everybody MariaDB's server, outside most people's PATH.

    Raises FileNotFoundError.
    """
    newest_first = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places = [os.environ.get("PATH", ""), "/usr/sbin", *map(str, newest_first)]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd="/", **_silent(), **_unprivileged())


def _silent() -> dict[str, int]:
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _unprivileged() -> dict[str, str]:
    return {"user": "nobody"} if os.getuid() == 0 else {}


def _create_database(server: Server, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the server, then create the database."""
    first = "postgres" if server.kind == "postgresql" else "mysql"
    engine = sa.create_engine(server.url_of(server.superuser, first), isolation_level="AUTOCOMMIT")
    given_up_s = monotonic() + PATIENCE_S
    while process.poll() is None and monotonic() < given_up_s:
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("CREATE DATABASE shop")
            engine.dispose()
            return
        except sa.exc.OperationalError:
            sleep(0.1)
    raise RuntimeError(f"the {server.kind} server did not start: {process.poll()}")
