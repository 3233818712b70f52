"""The agent as a `Predict`: one conversation per question, or one chat per database.

Asks questions one after the other, or in several threads at once. Scores nothing.

Lets agents in the workers of a Ray cluster answer questions. The process that asks scores and records them.
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any, Literal

from agent.assemble import LoadedModel
from agent.context import AgentContext, AgentOptions, ReadingWatch
from agent.conversation import Answer, Conversation
from agent.nodes.assess import RankedReading
from decoding.engine.sampler import Sampler
from decoding.serving.parts import ray_workers
from eval.accuracy.record import Predict, Prediction, Record
from eval.datasets.official import Example
from eval.scoring.referee import Engine
from eval.scoring.run_query import opened_copy
from tools.databases.annotations import Annotations, with_annotations
from tools.databases.database import Database
from tools.result import Limits
from tools.schema import ColumnRef
from tools.sql.from_sqlite import from_sqlite

Answered = tuple[Example, Prediction | None]


def answered(lines: Sequence[Sequence[Example]], predict: Predict, at_once: int) -> Iterator[Answered]:
    """Each example with its prediction, as soon as that is known; None for an example without database.

    The examples of a line are asked in order, and `at_once` lines run at the same time. With one line at a time, nothing is
    asked while the caller is busy. Raises what `predict` raises; running lines then stop after their current question.
    """
    if at_once > 1:
        yield from _at_once(lines, predict, at_once)
        return
    for line in lines:
        for example in line:
            yield _answered(example, predict)


def _answered(example: Example, predict: Predict) -> Answered:
    return example, predict(example) if example.executable else None


def _at_once(lines: Sequence[Sequence[Example]], predict: Predict, at_once: int) -> Iterator[Answered]:
    answers: SimpleQueue[Answered | Future[None]] = SimpleQueue()
    stopped = Event()

    def ask(line: Sequence[Example]) -> None:
        for example in line:
            if stopped.is_set():
                return
            answers.put(_answered(example, predict))

    with ThreadPoolExecutor(at_once, "question") as pool:
        try:
            for line in lines:
                pool.submit(ask, line).add_done_callback(answers.put)
            yield from _until_all_end(answers, len(lines))
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _until_all_end(answers: "SimpleQueue[Answered | Future[None]]", running: int) -> Iterator[Answered]:
    """What the threads answer, until `running` of them have ended. Raises the error with which one of them ended."""
    while running:
        item = answers.get()
        if isinstance(item, Future):
            item.result()
            running -= 1
        else:
            yield item


FOLDER = "database_description"


def open_described(file: Path, engine: Engine) -> Database:
    """The database, or its copy in another engine, with the descriptions of its columns if BIRD's folder of them lies next to
    the file. Raises OpenError."""
    database = opened_copy(file, engine)
    schema = database.schema()
    known = {(table.name.casefold(), column.name.casefold()) for table in schema.tables for column in table.columns}
    said = {ref: text for ref, text in _descriptions(file.parent / FOLDER) if ref in known}
    return with_annotations(database, Annotations(descriptions=said))


def _descriptions(folder: Path) -> Iterator[tuple[ColumnRef, str]]:
    """By (table, column) in lower case: the column's description and that of its values, as in BIRD's training set."""
    for file in sorted(folder.glob("*.csv")):
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            for row in csv.DictReader(lines):
                parts = (row.get("column_description"), row.get("value_description"))
                text = " ".join(part.strip() for part in parts if part and part.strip())
                name = (row.get("original_column_name") or "").strip()
                if text:
                    yield (file.stem.strip().casefold(), name.casefold()), text


FirstTurn = Literal["own", "gold"]


@dataclass(frozen=True, slots=True)
class Watching:
    """Gets each example's toolbox and readings; below, plans: as `ReadingWatch` has them."""

    tell: Callable[[Example, AgentContext, Sequence[RankedReading]], None]
    below: float
    plans: int

    def of(self, example: Example, toolbox: AgentContext) -> ReadingWatch:
        return ReadingWatch(partial(self.tell, example, toolbox), self.below, self.plans)


class AgentPredict:
    """Answers examples with a model that `load` returns when the first one arrives; several threads may ask at once.
    Questions are grouped by database, so that a thread needs one open database at a time.

    `first_turn`: with "own", the agent itself answers the questions before the example's, rightly or wrongly; with "gold",
    their gold SQL is put into its memory. Time and tokens are those of the example's question only. `watching`: who gets
    the readings of the examples.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        engine: Engine,
        options: AgentOptions,
        limits: Limits,
        first_turn: FirstTurn = "own",
        watching: Watching | None = None,
    ) -> None:
        self._model, self._engine, self._options, self._limits = LoadedOnce(load), engine, options, limits
        self._first_turn, self._watching = first_turn, watching
        self._lock = Lock()
        self._free: list[tuple[Path, Database]] = []  # open, but not in use

    def __call__(self, example: Example) -> Prediction:
        if example.database is None:
            raise ValueError(f"question {example.id} has no database")
        with self._database(example.database) as database:
            return predicted(lambda: self._after_history(example, database).ask(example.question, example.evidence))

    def close(self) -> None:
        """Close the databases that are not in use."""
        with self._lock:
            free, self._free = self._free, []
        for _, database in free:
            database.close()

    def _after_history(self, example: Example, database: Database) -> Conversation:
        """A conversation that already contains the questions before the example's."""
        options = seeded(self._options, example.id)
        toolbox = self._model().toolbox(database, options, self._limits)
        conversation = Conversation(toolbox)
        for question, gold in example.history:
            if self._first_turn == "own":
                conversation.ask(question)
            else:
                conversation.remember(question, _in_dialect(gold, database))
        if self._watching:
            toolbox.watch = self._watching.of(example, toolbox)
        return conversation

    @contextmanager
    def _database(self, path: Path) -> Iterator[Database]:
        """An open database for one question; unused ones of other paths are closed."""
        database = self._taken(path)
        if database is None:
            self.close()
            database = open_described(path, self._engine)
        try:
            yield database
        finally:
            with self._lock:
                self._free.append((path, database))

    def _taken(self, path: Path) -> Database | None:
        with self._lock:
            found = next((one for one in self._free if one[0] == path), None)
            if found:
                self._free.remove(found)
        return found[1] if found else None


class LoadedOnce:
    """Calls `load` when the first thread asks for the model; the other threads wait."""

    def __init__(self, load: Callable[[], LoadedModel]) -> None:
        self._load, self._lock = load, Lock()
        self._loaded: LoadedModel | None = None

    def __call__(self) -> LoadedModel:
        with self._lock:
            self._loaded = self._loaded or self._load()
            return self._loaded


def seeded(options: AgentOptions, question: str) -> AgentOptions:
    """The options with a seed for this question, so that its answer does not depend on the draws of others."""
    return replace(options, seed=Sampler(seed=options.seed).derive(question).seed)


def predicted(ask: Callable[[], Answer]) -> Prediction:
    """The prediction from an answer. A question that does not fit in the model's context gives one without SQL.
    Raises AnswerFailed where the program failed, which is no wrong answer: the run can be resumed."""
    answer = ask()
    if not (answer.error and answer.error["kind"] == "usage"):  # a prompt that is too long
        answer.checked()
    return Prediction(
        sql=_final_sql(answer),
        error=answer.error["message"] if answer.error else None,
        wall_ms=answer.total_ms,
        new_tokens=sum(step["new_tokens"] - step["forced_tokens"] for step in answer.steps),
        target_forwards=sum(step["target_forwards"] for step in answer.steps),
        steps=answer.steps,
        continues=answer.continues,
        confidence=answer.confidence,
        probably_wrong=answer.probably_wrong,
        features=answer.features,
        votes=answer.votes,
        alternatives=answer.alternatives,
    )


def _in_dialect(gold: str, database: Database) -> str:
    return from_sqlite(gold, database.schema()) if database.dialect != "sqlite" else gold


def _final_sql(answer: Answer) -> str:
    """The SQL that ran, otherwise the last that was tried, since it may still run under the scorer's limits."""
    if answer.sql:
        return answer.sql
    return next((attempt["sql"] for attempt in reversed(answer.attempts) if attempt["sql"]), "")


class ChatPredict:
    """Answers examples with a model that `load` returns when the first one arrives. Threads may ask about different databases
    at once; the questions of one database must come from one thread at a time, in the order of the chat.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        engine: Engine,
        options: AgentOptions,
        limits: Limits,
    ) -> None:
        self._model, self._engine, self._options, self._limits = LoadedOnce(load), engine, options, limits
        self._earlier: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._chats: dict[str, Conversation] = {}

    def recall(self, records: Sequence[Record]) -> None:
        """Let the chats begin with answers recorded by an earlier run; those whose SQL did not run are left out."""
        for record in records:
            if record.sql and record.prediction_error is None:
                self._earlier[record.db_id].append((record.question, record.sql))

    def __call__(self, example: Example) -> Prediction:
        chat = self._chats.get(example.db_id) or self._open(example)
        chat.toolbox.options = seeded(self._options, example.id)
        return predicted(lambda: chat.ask(example.question, example.evidence))

    def close(self) -> None:
        """Close every chat's database."""
        for chat in self._chats.values():
            chat.toolbox.database.close()
        self._chats.clear()

    def _open(self, example: Example) -> Conversation:
        if example.database is None:
            raise ValueError(f"question {example.id} has no database")
        database = open_described(example.database, self._engine)
        chat = self._chats[example.db_id] = Conversation(self._model().toolbox(database, self._options, self._limits))
        for question, sql in self._earlier.pop(example.db_id, []):
            chat.remember(question, sql)
        return chat


class _Worker:
    """A Ray actor: one agent with its model, loaded on the worker's machine."""

    def __init__(self, make: Callable[[], Predict]) -> None:
        self._predict = make()

    def predict(self, example: Example) -> Prediction:
        return self._predict(example)


@contextmanager
def ray_predict(address: str, workers: int | None, make: Callable[[], Predict]) -> Iterator[tuple[Predict, int]]:
    """A `Predict` that lets an idle worker answer, and the number of threads that can ask it at once.

    `make` runs in the workers, which `ray_workers` describes; databases must have the same paths there. Raises ClusterError.
    """
    with ray_workers(address, workers, _Worker, make) as actors:
        import ray

        idle: SimpleQueue[Any] = SimpleQueue()
        for actor in actors:
            idle.put(actor)

        def predict(example: Example) -> Prediction:
            worker = idle.get()
            try:
                prediction: Prediction = ray.get(worker.predict.remote(example))
                return prediction
            finally:
                idle.put(worker)

        yield predict, len(actors)
