"""A progress bar on stderr that shows the accuracy so far.

Runs a benchmark: asks for each prediction, has it scored and stores the record. The caller passes what answers.

With one question at a time, scoring and prediction take turns, so that neither distorts the other's time on a small
machine. With several at once, the run ends sooner, but the times of single answers mean little.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eval.accuracy.predict import answered
from eval.accuracy.record import Predict, Prediction, Record, RecordLog
from eval.accuracy.summary import summarise
from eval.datasets.official import Example
from eval.datasets.selection import by_database
from eval.scoring.referee import Engine, Task, Verdict
from eval.scoring.referee_pool import Worker
from eval.scoring.rules import Rules


class AccuracyBar:
    """A context manager that shows the bar while entered, if `visible`. `total`: the number of questions."""

    def __init__(self, total: int, visible: bool) -> None:
        self._progress = Progress(
            TextColumn("EX {task.fields[accuracy]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not visible,
        )
        self._task = self._progress.add_task("", total=total, accuracy="-")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, verdicts: Sequence[bool]) -> None:
        """Show that `done` questions are finished, and the accuracy from the `verdicts` so far."""
        accuracy = f"{sum(verdicts) / len(verdicts):.1%}" if verdicts else "-"
        self._progress.update(self._task, completed=done, accuracy=accuracy)


_NO_DATABASE = "the database is not there"
# DuckDB reserves far more address space than it uses; its own memory limit bounds what it uses.
_MEMORY_MB: Mapping[Engine, int] = {"sqlite": 2048}
_MEMORY_ELSEWHERE_MB = 16384


def evaluate(
    examples: Sequence[Example],
    predict: Predict,
    engine: Engine,
    out: Path,
    *,
    dataset: str,
    rules: Rules,
    model: str = "",
    decoder: str = "",
    settings: Mapping[str, Any] | None = None,
    timeout_s: float = 30.0,
    timed_runs: int = 100,
    at_once: int = 1,
    recall: Callable[[Sequence[Record]], None] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Score `predict` on the examples and return the summary. Writes records.jsonl, settings.json, summary.json and the
    prediction files that `rules` define to `out`.

    Called again on the same `out`, it continues with the examples that have no record yet. `settings` (JSON values) are
    whatever else the predictions depend on. `timed_runs` > 0 measures R-VES on SQLite, if the rules have it. An example without
    a database is not asked, and is recorded as not executed. `at_once` > 1: the number of threads that call `predict`. Pass
    `recall` if an answer depends on earlier ones on the same database: one thread then asks the questions of a database
    strictly in order, and `recall` is called with the records so far before the first question.

    Raises `ResumeError` if `out` holds another run, `WorkerError` if scoring cannot start, and whatever `predict` raises.
    """
    timed_runs = timed_runs if rules.has_ves and engine == "sqlite" else 0
    names = {
        "dataset": dataset,
        "engine": engine.partition(":")[0].partition("+")[0],
        "model": model,
        "decoder": decoder,
    }
    figures = {"timeout_s": timeout_s, "timed_runs": timed_runs, "questions": fingerprint(examples)}
    every_setting = {**(settings or {}), **names, **figures}
    log = RecordLog(out, every_setting, Record)
    try:
        scorer = Scorer(rules, engine, timeout_s, timed_runs)
        if recall:
            recall(log.records)
        _ask(examples, predict, log, scorer, at_once, progress, in_order=recall is not None)
    finally:
        log.close()
    records = log.in_order([example.id for example in examples])
    summary = summarise(records, levels=rules.levels, **names) | {"settings": every_setting}
    _write(summary, records, rules, out)
    return summary


def _ask(
    examples: Sequence[Example],
    predict: Predict,
    log: RecordLog[Record],
    scorer: "Scorer",
    at_once: int,
    progress: bool,
    in_order: bool,
) -> None:
    """Ask, score and record every example that has no record."""
    done = {record.id for record in log.records}
    missing = [example for example in examples if example.id not in done]
    lines = list(by_database(missing).values()) if in_order else [[example] for example in missing]
    try:
        with AccuracyBar(len(examples), progress) as bar:
            bar.show(len(log.records), _verdicts(log.records))
            for example, prediction in answered(lines, predict, at_once):
                log.append(_record(example, prediction, scorer))
                bar.show(len(log.records), _verdicts(log.records))
    finally:
        scorer.close()


def _verdicts(records: Sequence[Record]) -> list[bool]:
    return [record.correct for record in records if record.executed]


def task_for(example: Example, sql: str, rules: Rules, engine: Engine, timeout_s: float, timed_runs: int = 0) -> Task:
    """The task for the scoring process. The example must have a database."""
    if example.database is None:
        raise ValueError(f"question {example.id} has no database")
    databases = tuple(map(str, rules.databases(example.database)))
    return Task(rules, engine, example.gold, rules.prediction(sql), databases, timeout_s, timed_runs)


class Scorer:
    """Judges predictions by execution."""

    def __init__(self, rules: Rules, engine: Engine, timeout_s: float, timed_runs: int) -> None:
        self._rules, self._engine, self._timeout_s, self._timed_runs = rules, engine, timeout_s, timed_runs
        self._worker = Worker(_MEMORY_MB.get(engine, _MEMORY_ELSEWHERE_MB))

    def verdict(self, example: Example, sql: str) -> Verdict:
        """The verdict on execution; an empty prediction is wrong, whatever the gold query returns."""
        return self._worker.judge(task_for(example, sql, self._rules, self._engine, self._timeout_s, self._timed_runs))

    def close(self) -> None:
        """End the scoring process."""
        self._worker.close()


def _record(example: Example, prediction: Prediction | None, scorer: Scorer) -> Record:
    if prediction is None:
        return _make_record(example, Prediction(""), Verdict(gold_error=_NO_DATABASE))
    return _make_record(example, prediction, scorer.verdict(example, prediction.sql))


def _make_record(example: Example, prediction: Prediction, verdict: Verdict) -> Record:
    answer = {name: getattr(prediction, name) for name in Prediction.__slots__ if name not in ("sql", "error")}
    return Record(
        id=example.id,
        db_id=example.db_id,
        question=example.question,
        gold=example.gold,
        sql=prediction.sql,
        executed=verdict.gold_error is None,
        correct=verdict.correct,
        error=verdict.error if prediction.sql.strip() or verdict.gold_error else "no prediction",
        difficulty=example.difficulty,
        prediction_error=prediction.error,
        gold_error=verdict.gold_error,
        soft_f1=verdict.soft_f1,
        ves_reward=verdict.ves_reward,
        **answer,
    )


def fingerprint(examples: Sequence[Example]) -> str:
    """Number and digest of the questions, so that a run is continued only with the same questions in the same order."""
    keys = [[example.id, example.db_id, example.gold] for example in examples]
    return f"{len(examples)}:{hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16]}"


def _write(summary: Mapping[str, Any], records: Sequence[Record], rules: Rules, out: Path) -> None:
    for name, text in rules.files(records).items():
        (out / name).write_text(text, encoding="utf-8", errors="replace")
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
