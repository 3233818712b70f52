"""Queries that would never end: past their deadline they are over at the server too, and its memory has stayed bounded."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from time import monotonic, sleep

import psutil
import pytest
import sqlalchemy as sa

from tests.tools.databases.server.servers import Server
from tools.databases.isolated_database import IsolatedDatabase
from tools.databases.open_database import BareNamedDatabase, open_database
from tools.databases.server_engines import StopQuery
from tools.databases.sqlalchemy_database import open_url
from tools.result import Limits, QueryError, Result

DEADLINE_S = 1.5
DEAD_WITHIN_S = 2.0
MOST_MB = 2048
LIMITS = Limits(deadline_s=DEADLINE_S, memory_limit_mb=256)
_PIECES = "||".join(["name"] * 3000)
BOMBS = {
    "postgresql": {
        "a join": "SELECT count(*) FROM generate_series(1, 10000000) a, generate_series(1, 10000000) b",
        "a sort": "SELECT a FROM generate_series(1, 1000000000) a ORDER BY a DESC",
        "a list": "SELECT count(x) FROM (SELECT array_agg(a) AS x FROM generate_series(1, 1000000000) a) t",
        "a text": "SELECT length(string_agg(s, '')) FROM (SELECT repeat('x', 100000) s FROM generate_series(1, 1000000)) t",
        "a chain": f"SELECT length({_PIECES}) FROM bomb",
    },
    "mariadb": {
        "a join": "SELECT count(*) FROM seq_1_to_10000000 a, seq_1_to_10000000 b",
        "a sort": "SELECT a.seq FROM seq_1_to_1000000 a, seq_1_to_1000000 b ORDER BY a.seq * b.seq",
        "a list": "SELECT length(json_arrayagg(a.seq)) FROM seq_1_to_10000000 a, seq_1_to_1000000 b",
        "a chain": f"SELECT length({'replace(' * 25}name{', ' + repr('a') + ', ' + repr('aa') + ')'}"
        + ", 'a', 'aa')" * 24 + ") FROM bomb",
    },
}  # fmt: skip
RUNNING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() "
    "AND backend_type IN ('client backend', 'parallel worker')",
    "mariadb": "SELECT count(*) FROM information_schema.processlist WHERE command IN ('Query', 'Killed', 'Execute') "
    "AND id <> connection_id()",
}
PROGRAMS = {"postgresql": "postgres", "mariadb": "mariadbd"}


class Observer:
    """What the server itself says, from a connection of its owner."""

    def __init__(self, server: Server) -> None:
        self._kind = server.kind
        self._engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT")

    def do(self, sql: str) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(sql)

    def running(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.exec_driver_sql(RUNNING[self._kind]).scalar() or 0)

    def is_quiet_by(self, given_up_s: float) -> bool:
        while self.running():
            if monotonic() > given_up_s:
                return False
            sleep(0.05)
        return True

    def largest_mb(self) -> int:
        """Of the server's processes, without what they share."""
        sizes = [0]
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error):
                if process.info["name"] == PROGRAMS[self._kind]:
                    memory = process.memory_info()
                    sizes.append(memory.rss - memory.shared)
        return max(sizes) >> 20

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture(params=list(BOMBS))
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def observer(server: Server) -> Iterator[Observer]:
    with closing(Observer(server)) as observer:
        observer.do("CREATE TABLE bomb (name VARCHAR(1000))")
        observer.do(f"INSERT INTO bomb VALUES ('{'a' * 20}')")
        yield observer
        observer.do("DROP TABLE bomb")


def _peak_mb(observer: Observer, do: Callable[[], object]) -> int:
    over, peak = threading.Event(), [0]

    def watch() -> None:
        while not over.wait(0.1):
            peak[0] = max(peak[0], observer.largest_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        do()
    finally:
        over.set()
        watcher.join()
    return peak[0]


@pytest.mark.parametrize("name", sorted(set(BOMBS["postgresql"]) | set(BOMBS["mariadb"])))
def test_a_bomb_is_dead_at_the_server_two_seconds_after_its_deadline(
    server: Server, observer: Observer, name: str
) -> None:
    sql = BOMBS[server.kind].get(name)
    if sql is None:
        return
    with closing(open_database(server.url, isolated=True)) as database:
        assert isinstance(database.execute("SELECT 1"), Result)
        started_s, outcomes = monotonic(), list[Result | QueryError]()

        def ask() -> None:
            outcomes.append(database.execute(sql, LIMITS))
            assert observer.is_quiet_by(started_s + DEADLINE_S + DEAD_WITHIN_S)

        assert _peak_mb(observer, ask) < MOST_MB
        assert isinstance(outcomes[0], QueryError) and outcomes[0].kind in ("timeout", "memory", "refused"), outcomes
        if outcomes[0].kind == "timeout":
            assert outcomes[0].message == f"stopped after {DEADLINE_S:g} s"
        assert isinstance(database.execute("SELECT 1"), Result), "the next query runs"


def test_a_query_whose_process_was_killed_ends_at_the_server(server: Server, observer: Observer) -> None:
    """Nobody is left to cancel it."""
    with closing(open_database(server.url, isolated=True)) as database:
        apart = database.whole if isinstance(database, BareNamedDatabase) else database
        assert isinstance(apart, IsolatedDatabase) and isinstance(apart.execute("SELECT 1"), Result)
        asking = threading.Thread(target=database.execute, args=(BOMBS[server.kind]["a join"], LIMITS))
        started_s = monotonic()
        asking.start()
        while not observer.running():
            sleep(0.02)
        for pid in apart.pids:
            os.kill(pid, signal.SIGKILL)
        asking.join()
        assert observer.is_quiet_by(started_s + DEADLINE_S + DEAD_WITHIN_S)


def test_a_connection_is_ended_where_cancelling_does_nothing(server: Server, observer: Observer) -> None:
    engine = sa.create_engine(server.url)
    with engine.connect() as connection:
        stop = StopQuery(engine, connection)
        stop._cancel = lambda: None
        query = {"postgresql": "SELECT pg_sleep(60)", "mariadb": "SELECT sleep(60)"}[server.kind]
        asking = threading.Thread(target=_suppressed, args=(connection, query))
        asking.start()
        while not observer.running():
            sleep(0.02)
        given_up_s = monotonic() + DEAD_WITHIN_S
        while observer.running() and monotonic() < given_up_s:
            stop()
            sleep(0.02)
        assert not observer.running()
        asking.join(10)
        assert not asking.is_alive()
    engine.dispose()


def _suppressed(connection: sa.Connection, sql: str) -> None:
    with suppress(sa.exc.SQLAlchemyError):
        connection.exec_driver_sql(sql)
    connection.invalidate()


def test_memory_of_a_session_is_lowered_and_never_raised(server: Server) -> None:
    database = open_url(server.url)
    shown = {
        "postgresql": "SELECT pg_size_bytes(current_setting('work_mem')), pg_size_bytes(current_setting('temp_file_limit'))",
        "mariadb": "SELECT @@max_session_mem_used",
    }[server.kind]
    small, large = (database._run(shown, Limits(memory_limit_mb=size)) for size in (8, 1024))
    assert isinstance(small, Result) and isinstance(large, Result)
    if server.kind == "postgresql":
        assert small.rows == ((1 << 20, 32 << 20),) and large.rows == ((4 << 20, 4 << 30),), (
            "4 MiB is what the server has"
        )
    else:
        assert (small.rows, large.rows) == (((8 << 20,),), ((1 << 30,),))
    database.close()
