"""The agent as a `Predict` that keeps one chat per database, in which every question follows those asked before it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

from agent.assemble import LoadedModel
from agent.conversation.conversation import Conversation
from agent.graph.toolbox import AgentOptions
from eval.datasets.official import Example
from eval.predict.agent_predict import LoadedOnce, predicted, seeded
from eval.predict.described_database import open_described
from eval.predict.record import Prediction, Record
from tools.result import Limits


class ChatPredict:
    """Answers examples with a model that `load` returns when the first one arrives. Threads may ask about different databases
    at once; the questions of one database must come from one thread at a time, in the order of the chat.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        engine: Literal["duckdb", "sqlite"],
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
