"""Checks the harness against itself: scores every gold query as if it were the prediction."""

from collections.abc import Sequence
from dataclasses import dataclass

from eval.accuracy.run import task_for
from eval.datasets.official import Example
from eval.scoring.referee_pool import WorkerPool
from eval.scoring.rules import Rules


@dataclass(frozen=True, slots=True)
class GoldCheck:
    """The outcome: of `n` questions, `executed` have a gold query that runs, and `agreed` of these are judged right.

    `unrunnable`: (id, db_id, reason) of the others; `disagreed`: ids of gold queries that their own rules judge wrong.
    """

    n: int
    executed: int
    agreed: int
    unrunnable: tuple[tuple[str, str, str], ...]
    disagreed: tuple[str, ...]


def check_gold(examples: Sequence[Example], rules: Rules, *, workers: int = 2, timeout_s: float = 30.0) -> GoldCheck:
    """Score every gold query against itself on SQLite; the result says which could not be run and why."""
    runnable = [example for example in examples if example.executable]
    pool = WorkerPool(workers)
    try:
        tasks = [task_for(example, example.gold, rules, "sqlite", timeout_s) for example in runnable]
        judged = list(zip(runnable, pool.judge_all(tasks), strict=True))
    finally:
        pool.close()
    failed = {example.id: verdict.gold_error for example, verdict in judged if verdict.gold_error}
    reasons = {example.id: "the database is not there" for example in examples if not example.executable} | failed
    return GoldCheck(
        n=len(examples),
        executed=len(runnable) - len(failed),
        agreed=sum(verdict.correct for _, verdict in judged),
        unrunnable=tuple((e.id, e.db_id, reasons[e.id]) for e in examples if e.id in reasons),
        disagreed=tuple(e.id for e, verdict in judged if not verdict.correct and not verdict.gold_error),
    )
