"""The agent as a `Predict`: one conversation per question, one open database at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from agent.assemble import LoadedModel
from agent.conversation import Answer, Conversation
from agent.toolbox import AgentOptions
from eval.dataset import Example
from eval.record import Prediction
from tools.database import Database, open_database
from tools.result import Limits


class AgentPredict:
    """Answers examples with a loaded model. Questions come grouped by database, so one open database suffices."""

    def __init__(
        self, loaded: LoadedModel, engine: Literal["duckdb", "sqlite"], options: AgentOptions, limits: Limits
    ) -> None:
        self._loaded, self._engine, self._options, self._limits = loaded, engine, options, limits
        self._open: tuple[Path, Database] | None = None

    def __call__(self, example: Example) -> Prediction:
        if example.database is None:
            raise ValueError(f"question {example.id} has no database")
        seeded = replace(self._options, seed=self._options.seed + int(example.id))
        toolbox = self._loaded.toolbox(self._database(example.database), seeded, self._limits)
        answer = Conversation(toolbox).ask(example.question, example.evidence)
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

    def _database(self, path: Path) -> Database:
        if self._open is None or self._open[0] != path:
            self.close()
            self._open = path, open_database(path, engine=self._engine)
        return self._open[1]


def _final_sql(answer: Answer) -> str:
    """The SQL that ran, else the last one that was tried: it may still run under the scorer's own limits."""
    if answer.sql:
        return answer.sql
    return next((attempt["sql"] for attempt in reversed(answer.attempts) if attempt["sql"]), "")
