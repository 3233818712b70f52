"""The other processes of a model: they do what the first one tells them, in its order, until it ends.

Messages are made in `leader` and `parallel_target`. A forward names its model, and for each sequence its table, the rows
before, tokens, positions and which rows see which. Before it, tables change:

    ("begin", table, source, count)    begins with the first `count` rows of another, see `SharedTable.begin`
    ("keep", table, source, count)     holds them, see `SharedTable.kept`
    ("compact", table, start, rows)    accepted rows move together, see `TokenTable.compact`
    ("forget", number)                 a table or a model is gone
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from decoding.targets.cache.shared_table import SharedTable
from decoding.targets.llama_model import LlamaModel
from decoding.targets.parallel.group import Group, Message, ProcessLost
from kernels.ragged import SequenceRows

LoadPart = Callable[[Message], LlamaModel]


class Follower:
    """load: this process's part of the model that a message describes."""

    def __init__(self, group: Group, load: LoadPart) -> None:
        self._group, self._load = group, load
        self._models: dict[int, LlamaModel] = {}
        self._tables: dict[int, SharedTable] = {}
        self._changes: dict[str, Callable[..., None]] = {
            "begin": self._begin,
            "keep": self._keep,
            "compact": self._compact,
            "forget": self._forget,
        }

    def follow(self) -> None:
        """Until the first process ends, or is lost."""
        verbs = {"load": self._take_model, "forward": self._forward}
        try:
            while (message := self._group.receive())["do"] != "end":
                with torch.inference_mode():
                    for kind, *about in message["changes"]:
                        self._changes[kind](*about)
                    verbs[message["do"]](message)
        except ProcessLost:
            return

    def _take_model(self, message: Message) -> None:
        self._models[message["model"]] = self._load(message)

    def _forward(self, message: Message) -> None:
        model, told = self._models[message["model"]], message["rows"]
        for number, before, tokens, *_ in told:  # first, because a table that grows moves, and may come several times
            self._table(model, number).reserve(before + len(tokens), before)
        model.forward([self._rows(*each) for each in told], message["taps"], message["heads"])

    def _table(self, model: LlamaModel, number: int) -> SharedTable:
        return self._tables.get(number) or self._tables.setdefault(number, SharedTable(model.new_table()))

    def _rows(self, number: int, before: int, tokens: Any, positions: Any, seen: bytes | None) -> SequenceRows:
        square = None if seen is None else torch.frombuffer(bytearray(seen), dtype=torch.bool).view(len(tokens), -1)
        table = self._tables[number]
        return SequenceRows(table.own.data, before, tokens, positions, square, table.prefix)

    def _begin(self, number: int, source: int, count: int) -> None:
        begun = self._tables[source]
        self._tables[number] = begun.begin(count, begun.own.first_rows(0))

    def _keep(self, number: int, source: int, count: int) -> None:
        self._tables[number] = self._tables[source].kept(count)

    def _compact(self, number: int, start: int, rows: Sequence[int]) -> None:
        self._tables[number].compact(start, rows)

    def _forget(self, number: int) -> None:
        self._tables.pop(number, None)
        self._models.pop(number, None)
