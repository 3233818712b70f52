"""The process in which queries run: opens one database, and answers one request after another over a pipe.

What it may use is bound twice: by the engine's own limits, and by the kernel's, which hold when an engine's do not. CPU time:
the deadline on every core. Memory: the engine's limit, as much for the rows, and room for threads. Each file on disk: what an
engine may spill. When the pipe's other end goes, so does this process, even in the middle of a query.
"""

import math
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from queue import Empty, SimpleQueue
from typing import Literal

from tools.databases.database import Distinct
from tools.databases.duckdb_database import SPILL_PER_MEMORY
from tools.databases.guarded_database import GuardedDatabase
from tools.databases.query_messages import packed
from tools.result import Limits, OpenError, QueryError, Result
from tools.schema import Schema

Verb = Literal["execute", "explain", "plan", "distinct"]
STOP = "stop"
ROOM_MB = 512
ROOM_PER_CORE_MB = 64
"""A thread's stack and its share of the allocator: DuckDB runs one per core."""
CPU_GRACE_S = 5
IDLE_S = 300.0
"""A process that had nothing to do for so long ends: a server may have hundreds of open databases."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How the database is opened there: the place of its class, "module:Class", and what its `reopened` takes. The schema
    travels with it, so that it is read once. `needs_environment`: as the class has it.
    `seen`: what may be read of it; None for all.
    """

    place: str
    location: str
    name: str
    schema: Schema
    needs_environment: bool
    seen: Schema | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of the database; see the methods of `tools.databases.database.Database`."""

    verb: Verb
    wanted: str | Distinct  # SQL, or values
    limits: Limits


class _Server:
    """Owner of the open database."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._class: type[GuardedDatabase] = resolve_name(opening.place)
        self._database: GuardedDatabase | None = None
        self._bounds = Bounds()

    def answer(self, request: Request) -> Result | QueryError | None:
        """The outcome. A database that could not be opened is tried again with the next request."""
        try:
            self._database = self._database or self._reopened()
            self._bounds.hold(request.limits)
            if isinstance(request.wanted, Distinct):
                return self._database.distinct(request.wanted, request.limits)
            if request.verb == "explain":
                return self._database.explain(request.wanted, request.limits)
            do = self._database.execute if request.verb == "execute" else self._database.plan
            return do(request.wanted, request.limits)
        except OpenError as error:
            return QueryError("connection", str(error))
        except MemoryError:
            return _too_much(request.limits)

    def _reopened(self) -> GuardedDatabase:
        database = self._class.reopened(self._opening.location, self._opening.name)
        database.know(self._opening.schema)
        if self._opening.seen is not None:
            database.hold_to(self._opening.seen)
        return database

    def interrupt(self) -> None:
        if self._database is not None:
            self._database.interrupt()


def serve(descriptor: int) -> None:
    """Answer until the other end of the pipe goes, or nothing is asked for long.

    The first message is the `Opening`, all others are requests or STOP.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole terminal; the owner decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold the data
    pipe, waiting = Connection(descriptor), SimpleQueue[Request]()
    with ending_with(pipe):
        server = _Server(pipe.recv())
    threading.Thread(target=_read, args=(pipe, waiting, server), daemon=True).start()
    _send(pipe, packed(None))
    while True:
        try:
            request = waiting.get(timeout=IDLE_S)
        except Empty:
            os._exit(0)  # without the leave-taking of libraries, which would be read on stderr
        _send(pipe, packed(None))  # taken: if this process dies now, the request has to do with it
        _send(pipe, _bytes(server.answer(request), request.limits))


@contextmanager
def ending_with(pipe: Connection) -> Iterator[None]:
    """Use the pipe. When its other end is gone, so is this process, without a word: nobody waits for what it does."""
    try:
        yield
    except (EOFError, OSError):
        os._exit(0)


def _send(pipe: Connection, data: bytes) -> None:
    with ending_with(pipe):
        pipe.send_bytes(data)


def _read(pipe: Connection, waiting: SimpleQueue[Request], server: _Server) -> None:
    while True:
        with ending_with(pipe):
            message = pipe.recv()
        if message == STOP:
            server.interrupt()
        else:
            waiting.put(message)


def _bytes(outcome: Result | QueryError | None, limits: Limits) -> bytes:
    try:
        data = packed(outcome)
    except MemoryError:
        return packed(_too_much(limits))
    return data if len(data) <= limits.memory_limit_mb << 20 else packed(_too_much(limits))


def _too_much(limits: Limits) -> QueryError:
    return QueryError(
        "memory", f"the query takes more than {limits.memory_limit_mb} MiB; select fewer or shorter columns"
    )


class Bounds:
    """The kernel's limits on this process, set anew for each query, and counted from what the process has used before."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._at_rest_mb = _data_mb()

    def hold(self, limits: Limits) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = used.ru_utime + used.ru_stime + limits.deadline_s * self._cores + CPU_GRACE_S
        room_mb = self._at_rest_mb + ROOM_MB + ROOM_PER_CORE_MB * self._cores
        lower(resource.RLIMIT_CPU, math.ceil(cpu_s))
        lower(resource.RLIMIT_DATA, (room_mb + 2 * limits.memory_limit_mb) << 20)
        lower(resource.RLIMIT_FSIZE, SPILL_PER_MEMORY * limits.memory_limit_mb << 20)


def lower(what: int, most: int) -> None:
    """Set the soft limit, at most as high as the hard one, which stays: the next query may need more."""
    _, hard = resource.getrlimit(what)
    with suppress(ValueError, OSError):  # macOS does not take them all; deadline and engine still hold there
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _data_mb() -> int:
    """Private memory of this process in MiB; 0 where the system does not tell, which then does not limit it either."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmData:")), 0)
