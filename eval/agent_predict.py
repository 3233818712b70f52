"""The agent as a `Predict`: one conversation per question, one open database at a time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agent.assemble import LoadedModel
from agent.conversation import Answer, Conversation
from agent.toolbox import AgentOptions
from decoding.engine import PromptTooLong
from decoding.sampling import Sampler
from eval.dataset import Example
from eval.record import Prediction
from tools.database import Database, open_database
from tools.result import Limits
from tools.rewrite import sqlite_to_duckdb

FirstTurn = Literal["own", "gold"]


class AgentPredict:
    """Answers examples with a model that `load` gives when the first one comes. Questions come grouped by database, so one
    open database suffices.

    `first_turn`: "own" has the agent answer the questions before an example's own itself, and fail where it fails; "gold"
    puts their gold SQL into its memory. Time and tokens are those of the example's own question.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        engine: Literal["duckdb", "sqlite"],
        options: AgentOptions,
        limits: Limits,
        first_turn: FirstTurn = "own",
    ) -> None:
        self._load, self._engine, self._options, self._limits = load, engine, options, limits
        self._first_turn = first_turn
        self._loaded: LoadedModel | None = None
        self._open: tuple[Path, Database] | None = None

    def __call__(self, example: Example) -> Prediction:
        try:
            answer = self._after_history(example).ask(example.question, example.evidence)
        except PromptTooLong as error:
            return Prediction("", str(error))
        return Prediction(
            sql=_final_sql(answer),
            error=answer.error["message"] if answer.error else None,
            wall_ms=answer.total_ms,
            new_tokens=sum(step["new_tokens"] - step["forced_tokens"] for step in answer.steps),
            target_forwards=sum(step["target_forwards"] for step in answer.steps),
            steps=answer.steps,
        )

    def close(self) -> None:
        """Close the database that is open."""
        if self._open:
            self._open[1].close()
            self._open = None

    def _after_history(self, example: Example) -> Conversation:
        """A conversation that has had the questions before the example's."""
        if example.database is None:
            raise ValueError(f"question {example.id} has no database")
        self._loaded = self._loaded or self._load()
        database = self._database(example.database)
        seeded = replace(self._options, seed=Sampler(seed=self._options.seed).derive(example.id).seed)
        conversation = Conversation(self._loaded.toolbox(database, seeded, self._limits))
        for question, gold in example.history:
            if self._first_turn == "own":
                conversation.ask(question)
            else:
                conversation.remember(question, _in_dialect(gold, database))
        return conversation

    def _database(self, path: Path) -> Database:
        if self._open is None or self._open[0] != path:
            self.close()
            self._open = path, open_database(path, engine=self._engine)
        return self._open[1]


def _in_dialect(gold: str, database: Database) -> str:
    return sqlite_to_duckdb(gold, database.schema()) if database.dialect == "duckdb" else gold


def _final_sql(answer: Answer) -> str:
    """The SQL that ran, else the last one that was tried: it may still run under the scorer's own limits."""
    if answer.sql:
        return answer.sql
    return next((attempt["sql"] for attempt in reversed(answer.attempts) if attempt["sql"]), "")
