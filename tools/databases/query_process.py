"""The process that runs queries, and the messages between it and its owner.

A query's process reads hostile data with large C libraries; whatever becomes of it, its bytes can only become numbers, texts,
times, lists and dicts here. Cells keep their Python type; one of a type that is not listed arrives as its text.

What it may use is bound twice: by the engine's own limits, and by the kernel's, which hold when an engine's do not. CPU time:
the deadline on every core. Memory: the engine's limit, as much for the rows, and room for threads. Each file on disk: what an
engine may spill. When the pipe's other end goes, so does this process, even in the middle of a query.
"""

import math
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from queue import Empty, SimpleQueue
from typing import Any, Literal
from uuid import UUID

import ormsgpack
import pytz

from tools.databases.database import Distinct
from tools.databases.duckdb_database import SPILL_PER_MEMORY
from tools.databases.guarded_database import GuardedDatabase
from tools.result import Limits, OpenError, QueryError, Result
from tools.schema import Schema

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)


class _Pairs:
    """A dict whose keys are no texts, as DuckDB's MAP gives it. No dataclass: those MessagePack would spell as dicts."""

    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs


def packed(outcome: Result | QueryError | None) -> bytes:
    """The outcome of a query as bytes."""
    if isinstance(outcome, Result):
        head = [list(outcome.columns), list(outcome.types), outcome.truncated, outcome.wall_ms, list(outcome.tie_keys)]
        return _pack(["rows", *head, [list(row) for row in outcome.rows]])
    return _pack(["error", asdict(outcome)] if outcome else ["none"])


def unpacked(data: bytes) -> Result | QueryError | None:
    """What `packed` was given. Raises ValueError for anything else."""
    try:
        kind, *rest = _unpack(data)
        if kind == "rows":
            columns, types, truncated, wall_ms, ties, rows = rest
            cells, keys = tuple(map(tuple, rows)), tuple(map(str, ties))
            return Result(tuple(columns), tuple(types), cells, bool(truncated), float(wall_ms), keys)
        if kind == "error":
            return QueryError(**rest[0] | {"candidates": tuple(map(str, rest[0]["candidates"]))})
    except (TypeError, KeyError, ArithmeticError, LookupError) as error:
        raise ValueError("the bytes are no outcome of a query") from error
    return None


def _pack(value: Any) -> bytes:
    try:
        return ormsgpack.packb(value, default=_spelt, option=_OPTIONS)
    except TypeError:  # a key that is no text: seldom, so the walk through all cells is made only then
        return ormsgpack.packb(_with_pairs(value), default=_spelt, option=_OPTIONS)


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_read)


def _with_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return _Pairs([[_with_pairs(key), _with_pairs(item)] for key, item in value.items()])
    if isinstance(value, list | tuple):
        return type(value)(map(_with_pairs, value))
    return value


def _spelt(value: Any) -> Any:
    """What MessagePack has no word for: a number for its type, and its text or parts."""
    if isinstance(value, memoryview):
        return bytes(value)
    found = next((each for each in enumerate(_KINDS) if isinstance(value, each[1][0])), None)
    if found is None:
        return str(value)
    number, (_, write, _) = found
    return ormsgpack.Ext(number, _pack(write(value)))


def _read(number: int, data: bytes) -> Any:
    if number >= len(_KINDS):
        raise ValueError(f"no kind of value has the number {number}")
    return _KINDS[number][2](_unpack(data))


def _moment(parts: list[str]) -> datetime:
    text, zone = parts
    moment = datetime.fromisoformat(text)
    return moment.astimezone(pytz.timezone(zone)) if zone else moment


_KINDS: tuple[tuple[type, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (int, str, int),
    (tuple, list, tuple),
    (Decimal, str, Decimal),
    (datetime, lambda value: [value.isoformat(), getattr(value.tzinfo, "zone", None) or ""], _moment),
    (date, date.isoformat, date.fromisoformat),
    (time, time.isoformat, time.fromisoformat),
    (timedelta, lambda value: [value.days, value.seconds, value.microseconds], lambda parts: timedelta(*parts)),
    (UUID, str, UUID),
    (_Pairs, lambda value: value.pairs, dict),
)
"""Type, how it is written, how it is read; its place here is its number. datetime stands before date, which it is too."""


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
    threading.Thread(target=_read_requests, args=(pipe, waiting, server), daemon=True).start()
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


def _read_requests(pipe: Connection, waiting: SimpleQueue[Request], server: _Server) -> None:
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
    """The kernel's limits on this process, set again for each query, and counted from what the process has used before."""

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
