"""The child process that runs a question's gold and predicted SQL and judges them. `eval/scoring/referee_pool.py` owns it.

It may hang, run out of memory or crash, so it announces each phase before it begins, and the owner knows what to blame.
To start quickly, it imports only the standard library and the rules of its tasks, and another engine when a task needs it.
"""

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Literal

from eval.scoring.bird import time_reward
from eval.scoring.rules import Rules
from eval.scoring.run_query import CopyingEngine, QueryFailedError, Row, comparable, connect, run_sqlite

Engine = str  # "sqlite", "duckdb", or the URL of a server that databases are copied to

_LOADING_S = 300.0
_ALARM_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Task:
    """One question to judge. The gold query runs in SQLite, the prediction in `engine`, on each of `databases`.

    `timeout_s` bounds each query or, if the rules share the deadline, both together, as the official scripts do.
    `timed_runs` > 0 repeats a correct pair that many times for R-VES, within `timeout_s`.
    """

    rules: Rules
    engine: Engine
    gold: str
    predicted: str
    databases: tuple[str, ...]
    timeout_s: float
    timed_runs: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one question. `gold_error`: why it cannot be scored; `error`: why the prediction returned no rows.

    `soft_f1` and `ves_reward` are None if the rules have none; `exhausted` asks for a fresh process.
    """

    correct: bool = False
    error: str | None = None
    gold_error: str | None = None
    soft_f1: float | None = None
    ves_reward: float | None = None
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that begins now, how many seconds it may take, and the verdict so far."""

    name: "PhaseName"
    allowance_s: float
    known: Verdict


PhaseName = Literal["loading", "gold", "prediction", "comparison", "timing"]
Announce = Callable[[Phase], None]


class GoldFailedError(Exception):
    """The question cannot be scored; the message says why."""


def serve(descriptor: int, memory_mb: int) -> None:
    """Judge the tasks that come through the pipe until its other end closes. `memory_mb` bounds the address space."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bound_memory(memory_mb)
    pipe = Connection(descriptor)
    referee = Referee(lambda phase: _announce(pipe, phase))
    pipe.send("ready")
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        verdict = referee.judge(task)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send(verdict)


def _bound_memory(memory_mb: int) -> None:
    """Limit the address space. Only Linux honours the limit; elsewhere only the deadline stops a query that uses too much."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))


def _announce(pipe: Connection, phase: Phase) -> None:
    """Tell the owner, and set an alarm so that the kernel ends this process if the owner is gone; SIGALRM stops C code too."""
    signal.setitimer(signal.ITIMER_REAL, phase.allowance_s + _ALARM_GRACE_S)
    pipe.send(phase)


def unscored(task: Task) -> Verdict:
    """The verdict before anything has run: wrong, with zeros for the figures that the task asks for."""
    timed = task.rules.has_ves and task.timed_runs
    return Verdict(soft_f1=0.0 if task.rules.has_soft_f1 else None, ves_reward=0.0 if timed else None)


def lost(phase: Phase, cause: str) -> Verdict:
    """The verdict if a phase does not end: the gold query is at fault, or the prediction, or the timing, which counts 0."""
    if phase.name in ("loading", "gold"):
        return replace(phase.known, gold_error=cause)
    if phase.name == "timing":
        return replace(phase.known, ves_reward=0.0)
    return replace(phase.known, error=cause if phase.name == "prediction" else f"{cause} in {phase.name}")


class Referee:
    """Judges one task after the other and announces the phases. Keeps the database that another engine has loaded."""

    def __init__(self, announce: Announce) -> None:
        self._tell = announce
        self._copies = CopyingEngine()
        self._phase = Phase("gold", 0.0, Verdict())

    def judge(self, task: Task) -> Verdict:
        """The verdict; the prediction must be right on every database (several are a test suite). Running out of memory also
        gives a verdict.
        """
        verdict = known = unscored(task)
        try:
            for database in task.databases:
                verdict = self._judge_on(database, task, known)
                if not verdict.correct:
                    break
        except MemoryError:
            return replace(lost(self._phase, "out of memory"), exhausted=True)
        return verdict

    def _judge_on(self, database: str, task: Task, known: Verdict) -> Verdict:
        try:
            gold_rows, spent_s = self._gold_rows(database, task, known)
            predicted_rows = self._predicted_rows(database, task, known, spent_s)
        except GoldFailedError as failure:
            return replace(known, gold_error=str(failure))
        except QueryFailedError as failure:
            return replace(known, error=str(failure))
        self._begin("comparison", task.timeout_s, known)
        if task.engine != "sqlite":
            gold_rows, predicted_rows = comparable(gold_rows), comparable(predicted_rows)
        marks = task.rules.marks(task.gold, gold_rows, predicted_rows)
        scored = replace(known, correct=marks.correct, soft_f1=marks.soft_f1)
        timed = marks.correct and task.rules.has_ves and task.timed_runs
        return self._timed(database, task, scored) if timed else scored

    def _begin(self, name: PhaseName, allowance_s: float, known: Verdict) -> None:
        self._phase = Phase(name, allowance_s, known)
        self._tell(self._phase)

    def _gold_rows(self, database: str, task: Task, known: Verdict) -> tuple[list[Row], float]:
        """The gold query's rows and the seconds it took."""
        self._begin("gold", task.timeout_s, known)
        started = time.perf_counter()
        try:
            rows = run_sqlite(database, task.rules.runnable_gold(task.gold), lenient=task.rules.lenient)
        except QueryFailedError as failure:
            raise GoldFailedError(str(failure)) from failure
        return rows, time.perf_counter() - started

    def _predicted_rows(self, database: str, task: Task, known: Verdict, spent_s: float) -> list[Row]:
        rules = task.rules
        allowance_s = max(0.0, task.timeout_s - spent_s) if rules.shared_deadline else task.timeout_s
        if task.engine != "sqlite":
            self._load(database, task.engine, known)
        self._begin("prediction", allowance_s, known)
        sql = rules.runnable(task.predicted)
        if task.engine != "sqlite":
            return self._copies.run(sql, allowance_s)
        return run_sqlite(database, sql, lenient=rules.lenient)

    def _load(self, database: str, engine: Engine, known: Verdict) -> None:
        self._begin("loading", _LOADING_S, known)
        try:
            self._copies.load(database, engine)
        except QueryFailedError as failure:
            raise GoldFailedError(f"the database cannot be loaded there: {failure}") from failure

    def _timed(self, database: str, task: Task, scored: Verdict) -> Verdict:
        """The verdict with the reward from up to `timed_runs` ratios; sampling ends early after `timeout_s`."""
        self._begin("timing", 3 * task.timeout_s, scored)
        ratios: list[float] = []
        ends = time.perf_counter() + task.timeout_s
        while len(ratios) < task.timed_runs and (not ratios or time.perf_counter() < ends):
            predicted_s = _seconds(database, task.predicted)
            ratios.append(_seconds(database, task.gold) / predicted_s)
        return replace(scored, ves_reward=time_reward(ratios))


def _seconds(database: str, sql: str) -> float:
    """Seconds to run and fetch on a fresh connection, which SQLite opens on first use."""
    connection = connect(database, lenient=False)
    started = time.perf_counter()
    connection.execute(sql).fetchall()
    connection.close()
    return time.perf_counter() - started
