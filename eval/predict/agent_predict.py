"""The agent as a `Predict`: one conversation per question, and at most one open database per thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Literal

from agent.assemble import LoadedModel
from agent.conversation.conversation import Answer, Conversation
from agent.graph.doubt.doubt_node import Reading
from agent.graph.toolbox import AgentOptions, ReadingWatch, Toolbox
from decoding.engine.sampling.sampler import Sampler
from eval.datasets.official import Example
from eval.predict.described_database import open_described
from eval.predict.record import Prediction
from tools.databases.database import Database
from tools.result import Limits
from tools.sql.dialects.sqlite_to_duckdb import sqlite_to_duckdb

FirstTurn = Literal["own", "gold"]


@dataclass(frozen=True, slots=True)
class Watching:
    """Gets each example's toolbox and readings; below, plans: as `ReadingWatch` has them."""

    tell: Callable[[Example, Toolbox, Sequence[Reading]], None]
    below: float
    plans: int

    def of(self, example: Example, toolbox: Toolbox) -> ReadingWatch:
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
        engine: Literal["duckdb", "sqlite"],
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
    return sqlite_to_duckdb(gold, database.schema()) if database.dialect == "duckdb" else gold


def _final_sql(answer: Answer) -> str:
    """The SQL that ran, otherwise the last that was tried, since it may still run under the scorer's limits."""
    if answer.sql:
        return answer.sql
    return next((attempt["sql"] for attempt in reversed(answer.attempts) if attempt["sql"]), "")
