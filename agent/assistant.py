"""The agent from Python, in five lines:

    from agent.assistant import Assistant

    with Assistant.open("shop.sqlite") as shop:
        answer = shop.ask("How many customers are there?")
        print(answer.answer, answer.sql, answer.rows)

`ask` takes each question by itself; `conversation().ask` also knows what came before. The model is loaded with the first
question; `sql` and `schema` do not need it. Every method may be called from any thread.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.assemble import LoadedModel, ModelChoice, RemoteModel, any_model
from agent.context import AgentOptions
from agent.conversation import Answer, Conversation
from agent.observe.audit import Trail, run_sql
from agent.second_opinion import with_question
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.result import DEFAULT_LIMITS, Limits, QueryError, Result
from tools.review import Review, review
from tools.schema import Schema


class Assistant:
    """A database together with the agent that answers questions about it. Owns the database; `close` closes it."""

    def __init__(
        self,
        database: Database,
        choice: ModelChoice,
        options: AgentOptions | None = None,
        limits: Limits = DEFAULT_LIMITS,
        trail: Callable[[], Trail | None] = lambda: None,
        model: LoadedModel | RemoteModel | None = None,
    ) -> None:
        """`model`: one that is loaded already.

        `trail` makes each asker's access to the audit log. Raises UnknownMethod and UnknownProfile for unknown names."""
        choice.check()
        self.database, self.limits = database, limits
        self._choice, self._options, self._trail = choice, options or AgentOptions(rerank=True), trail
        self._lock = threading.Lock()
        self._model = model

    @classmethod
    def open(
        cls,
        source: str | Path | Sequence[str | Path],
        model: str = "embedded",
        options: AgentOptions | None = None,
        limits: Limits = DEFAULT_LIMITS,
        escalate: str = "",
    ) -> Self:
        """Open a file, files, a folder or a URL, with a model named as for `--model`, and one as for `--escalate`. Raises
        OpenError."""
        return cls(open_database(source, isolated=True), ModelChoice(model=model, escalate=escalate), options, limits)

    def ask(self, question: str, evidence: str = "") -> Answer:
        """Answer one question. `evidence`: what its words mean in this data. Raises ModelError."""
        return self.conversation().ask(question, evidence)

    def conversation(self) -> Conversation:
        """A new conversation, whose later questions may refer to earlier ones. Raises ModelError."""
        return self._conversation(self._options)

    def _conversation(self, options: AgentOptions) -> Conversation:
        toolbox = self._loaded().toolbox(self.database, options, self.limits)
        toolbox.trail = self._trail()
        return Conversation(toolbox)

    def sql(self, statement: str) -> Result | QueryError:
        """Run one read-only statement without the model. Errors in the SQL are returned, not raised."""
        return run_sql(self._trail(), self.database, statement, self.limits)

    def check(self, statement: str, question: str = "", evidence: str = "", *, readings: bool = False) -> Review:
        """A second opinion on SQL that somebody else wrote: what it reads, and what the data say against it. With the question
        that it should answer also what that names and the SQL doesn't, and where our own reading gives other rows; that
        needs the model, which is asked for one reading: only one that is sure at once is held against the SQL. `readings`:
        where ours is doubtful, look again and compare others, too, which takes seconds. Raises ModelError.
        """
        trail = self._trail()

        def run(sql: str) -> Result | QueryError:
            return run_sql(trail, self.database, sql, self.limits)

        found = review(statement, self.database, run)
        if not question.strip() or found.error:
            return found
        options = replace(self._options, rerank=readings)
        if not readings:
            options = replace(options, orders=1, max_attempts=1, present=False)
        answer = self._conversation(options).ask(question, evidence)
        return with_question(found, self.database, run, question, evidence, answer)

    def schema(self) -> Schema:
        """Tables, columns, keys and samples. Raises OpenError."""
        return self.database.schema()

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _loaded(self) -> LoadedModel | RemoteModel:
        with self._lock:
            self._model = self._model or any_model(self._choice)
            return self._model
