"""Tensor parallelism: how a model is split, how the first process leads the others, and how they talk.

Messages are numbers and bytes through gloo, on any device; what the model computes goes through gloo on processors and through
NCCL on GPUs.

The split is that of Megatron-LM (Shoeybi et al., arXiv 1909.08053). Queries, keys, values, gates and ups are cut by rows, so
each process has some heads and some of the inner numbers. The output projection of attention and the down projection are cut by
columns, and what they give is added up over the processes: two sums a layer. The LM head, which every forward reads whole, is
cut by tokens; the embedding, of which a forward reads a few rows, is in every process. Where there are more processes than
key-value heads, some hold the same ones.

Others do not decide anything. They are told which rows go into which table, and what became of the tables since: that goes
with the next forward, so a round is one message.

Messages are made in `leader` and `parallel_target`. A forward names its model, and for each sequence its table, the rows
before, tokens, positions and which rows see which. Before it, tables change:

    ("begin", table, source, count)    begins with the first `count` rows of another, see `SharedTable.begin`
    ("keep", table, source, count)     holds them, see `SharedTable.kept`
    ("compact", table, start, rows)    accepted rows move together, see `TokenTable.compact`
    ("forget", number)                 a table or a model is gone
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from itertools import count
from threading import RLock
from typing import Any, Protocol
from weakref import WeakKeyDictionary, finalize

import ormsgpack
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import HEAD, ModelConfig
from decoding.engine.target import Array
from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.targets import cached_target
from decoding.targets.cached_target import Scored
from decoding.targets.fast_target import Chunk, FastSequence, FastTarget, head_rows, sequence_rows
from decoding.targets.llama_model import LlamaModel, Packer, Projection, SharedTable
from kernels.gpu.ragged import SequenceRows

Message = dict[str, Any]


_LONGEST_WAIT = timedelta(days=300)  # for a message: nobody may ask anything for a week


_AT_ONCE = 4096  # bytes of a message that need no second transfer; a round's are a few hundred


_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class ProcessLost(ModelUnavailable):
    """Another process of this model has ended."""


class Group:
    """This process among those that torchrun's environment describes. Raises ModelUnavailable where it is incomplete."""

    def __init__(self) -> None:
        if missing := [name for name in _NEEDED if name not in os.environ]:
            raise ModelUnavailable(
                f"WORLD_SIZE asks for several processes, but {missing[0]} is not set: start them with torchrun "
                "--no-python --nproc-per-node N sqlagent ..., or unset WORLD_SIZE"
            )
        with _told_if_lost():
            dist.init_process_group("gloo", timeout=_LONGEST_WAIT)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._computing: dist.ProcessGroup | None = None  # None: gloo

    def device(self, kind: str) -> str:
        """The device of this process, of this kind ("cpu", "cuda"). All processes must ask for the same kind in turn."""
        if not kind.startswith("cuda"):
            return kind
        place = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(place)
        self._computing = self._computing or dist.new_group(backend="nccl")
        return place

    def send(self, message: Message) -> None:
        """To all others. Raises ProcessLost."""
        packed = ormsgpack.packb(message)
        first = torch.zeros(_AT_ONCE, dtype=torch.uint8)
        first[:8] = torch.tensor([len(packed)]).view(torch.uint8)
        whole = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        first[8 : 8 + len(packed)] = whole[: _AT_ONCE - 8]
        with _told_if_lost():
            dist.broadcast(first, 0)
            if len(packed) > _AT_ONCE - 8:
                dist.broadcast(whole[_AT_ONCE - 8 :].clone(), 0)

    def receive(self) -> Message:
        """The first process's next message. Raises ProcessLost."""
        first = torch.empty(_AT_ONCE, dtype=torch.uint8)
        with _told_if_lost():
            dist.broadcast(first, 0)
            size = int(first[:8].view(torch.long))
            rest = torch.empty(max(0, size - (_AT_ONCE - 8)), dtype=torch.uint8)
            if len(rest):
                dist.broadcast(rest, 0)
        message: Message = ormsgpack.unpackb(torch.cat([first[8:], rest])[:size].numpy().tobytes())
        return message

    def add_up(self, x: Tensor) -> Tensor:
        """x, which becomes the sum over all processes."""
        with _told_if_lost():
            dist.all_reduce(x, group=self._computing)
        return x

    def joined(self, x: Tensor) -> Tensor:
        """The columns of all processes' x [rows, columns] side by side: [rows, size * columns]."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with _told_if_lost():
            dist.all_gather(parts, x, group=self._computing)
        return torch.cat(parts, 1)

    def leave(self) -> None:
        """Close the connections, which tells those who still wait."""
        dist.destroy_process_group()


@contextmanager
def _told_if_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ProcessLost(f"another process of this model has ended; start all of them again ({reason})") from error


_PATIENCE_S = 10.0  # for a forward that goes on when all should end


class Leader:
    """Numbers what all processes have (models, tables), and sends messages. Any thread may use it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._turn = RLock()
        self._is_in_step = True
        self._changes: deque[tuple[Any, ...]] = deque()
        self._numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._next = count(1)

    def number(self, thing: object) -> int:
        """By which the others know it."""
        known = self._numbers.get(thing)
        return self.adopt(thing, self.new_number()) if known is None else known

    def new_number(self) -> int:
        return next(self._next)

    def adopt(self, thing: object, number: int) -> int:
        """The others know a thing by this number, and forget it when it is gone here."""
        self._numbers[thing] = number
        finalize(thing, self._changes.append, ("forget", number)).atexit = False
        return number

    def note(self, *change: Any) -> None:
        """A change of a table, for the next message; see `follower`."""
        self._changes.append(change)

    @contextmanager
    def told(self, do: str, **about: Any) -> Iterator[None]:
        """Tell the others to do something; what is done inside is the same. Raises ProcessLost.

        If it fails here, the others wait in the middle of it, so nothing more can be computed together.
        """
        with self._turn:
            if not self._is_in_step:
                raise ProcessLost("a forward of several processes was broken off; start all of them again")
            self._is_in_step = False
            changes = [self._changes.popleft() for _ in range(len(self._changes))]
            self.group.send({"do": do, "changes": changes, **about})
            yield
            self._is_in_step = True

    def end(self) -> None:
        """Let the others end, and leave the group."""
        if self._turn.acquire(timeout=_PATIENCE_S):
            try:
                if self._is_in_step:
                    self.group.send({"do": "end"})
            except ProcessLost:
                pass
            finally:
                self._turn.release()
        self.group.leave()


_CUT_BY_ROWS = {"q_proj": "queries", "k_proj": "keys", "v_proj": "keys", "gate_proj": "inner", "up_proj": "inner"}
_CUT_BY_COLUMNS = {"o_proj": "queries", "down_proj": "inner"}


class Stored(Protocol):
    """A tensor, or one in a file of which only what is asked for is read."""

    def __getitem__(self, key: Any, /) -> Tensor: ...


@dataclass(frozen=True)
class Split:
    """Process `rank` of `size`, and the configuration of the whole model. Raises UnsupportedModel where it cannot be cut so."""

    config: ModelConfig
    rank: int
    size: int

    def __post_init__(self) -> None:
        config, size = self.config, self.size
        for number, what in ((config.heads, "attention heads"), (config.intermediate_size, "inner numbers of the MLP")):
            if number % size:
                raise UnsupportedModel(f"{number} {what} cannot be cut into {size} equal parts; start another number")
        if config.kv_heads % size and size % config.kv_heads:
            raise UnsupportedModel(
                f"{config.kv_heads} key-value heads cannot be shared out to {size} processes; start another number"
            )

    @cached_property
    def part(self) -> ModelConfig:
        """The configuration of this process's part; its vocabulary is the whole one."""
        config, size = self.config, self.size
        return replace(
            config,
            heads=config.heads // size,
            kv_heads=max(1, config.kv_heads // size),
            intermediate_size=config.intermediate_size // size,
        )

    @property
    def head_size(self) -> int:
        """Tokens of the LM head in a part; the last part may hold fewer."""
        return -(-self.config.vocab_size // self.size)

    @property
    def head_rows(self) -> slice:
        """The tokens whose logits this process computes."""
        start, vocab = self.rank * self.head_size, self.config.vocab_size
        return slice(min(start, vocab), min(start + self.head_size, vocab))

    def memory_bytes(self, matrix_bytes: int, other_bytes: int) -> int:
        """Memory of this process's weights, see `ModelConfig.memory_bytes`."""
        elsewhere = 0 if self.config.tie_embeddings else self.config.vocab_size - self.head_size
        return self.part.memory_bytes(matrix_bytes, other_bytes) - elsewhere * self.config.hidden_size * matrix_bytes

    def cut(self, name: str, stored: Stored) -> Tensor:
        """This process's part of the tensor of this name, in memory of its own."""
        part = self._part(name, stored)
        return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part

    def all_cut(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The parts of whole tensors, of which one at a time is needed."""
        for name, tensor in weights:
            yield name, self.cut(name, tensor)

    def _part(self, name: str, stored: Stored) -> Tensor:
        *_, module, kind = name.split(".")
        if name == HEAD:
            return stored[self.head_rows]
        if module in _CUT_BY_ROWS:
            return stored[self._place(_CUT_BY_ROWS[module])]
        if module in _CUT_BY_COLUMNS and kind == "weight":
            return stored[:, self._place(_CUT_BY_COLUMNS[module])]
        whole = stored[:]
        is_counted_elsewhere = module in _CUT_BY_COLUMNS and self.rank > 0  # a bias, which the sum must hold once
        return torch.zeros_like(whole) if is_counted_elsewhere else whole

    def _place(self, what: str) -> slice:
        config, part = self.config, self.part
        first, count = {
            "queries": (self.rank * part.heads * config.head_dim, part.heads * config.head_dim),
            "keys": (self.rank * config.kv_heads // self.size * config.head_dim, part.kv_heads * config.head_dim),
            "inner": (self.rank * part.intermediate_size, part.intermediate_size),
        }[what]
        return slice(first, first + count)


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A `decoding.targets.llama_model.Share` among the processes of a group."""

    split: Split
    group: Group

    @property
    def head_rows(self) -> slice:
        return self.split.head_rows

    def summed(self, pack: Packer) -> Packer:
        def packed(weight: Tensor, bias: Tensor | None = None) -> Projection:
            return _then(pack(weight, bias), self.group.add_up)

        return packed

    def head(self, pack: Packer, rows: Tensor) -> Projection:
        missing, vocab = self.split.head_size - len(rows), self.split.config.vocab_size
        part = pack(functional.pad(rows, (0, 0, 0, missing)))
        return _then(part, lambda x: self.group.joined(x)[:, :vocab])


def _then(first: Projection, second: Callable[[Tensor], Tensor]) -> Projection:
    return lambda x: second(first(x))


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


class ParallelTarget(FastTarget):
    """model: this process's part. whole_head: reads the LM head, for draft heads, which have no part of it."""

    prepares_taps = False

    def __init__(
        self,
        model: LlamaModel,
        leader: Leader,
        whole_head: Callable[[], Tensor],
        cache_bytes: int = cached_target.CACHE_BYTES,
    ) -> None:
        super().__init__(model, cache_bytes)
        self._leader, self._whole_head = leader, whole_head
        self._lm_head: Tensor | None = None

    @property
    def lm_head(self) -> Array:
        if self._lm_head is None:
            self._lm_head = self._whole_head()
        return self._lm_head

    def commit(self, sequence: FastSequence, path: Sequence[int]) -> None:
        super().commit(sequence, path)
        if list(path) != list(range(len(path))):
            start = sequence.cached - len(path)
            self._leader.note("compact", self._leader.number(sequence.cache), start, list(path))

    def _new_cache(self, source: SharedTable | None, count: int) -> SharedTable:
        table = super()._new_cache(source, count)
        if source is not None:
            self._leader.note("begin", self._leader.number(table), self._leader.number(source), count)
        return table

    def _kept(self, cache: SharedTable, count: int) -> tuple[SharedTable, int]:
        kept, size_bytes = super()._kept(cache, count)
        self._leader.note("keep", self._leader.number(kept), self._leader.number(cache), count)
        return kept, size_bytes

    def _run(self, chunks: Sequence[Chunk], taps: Sequence[int]) -> tuple[list[Scored], Tensor | None]:
        rows = [self._told(chunk, sequence_rows(chunk)) for chunk in chunks]
        model = self._leader.number(self.model)
        with self._leader.told("forward", model=model, rows=rows, taps=list(taps), heads=head_rows(chunks)):
            return super()._run(chunks, taps)

    def _told(self, chunk: Chunk, rows: SequenceRows) -> list[object]:
        """The rows as `follower` reads them."""
        seen = None if rows.seen is None else rows.seen.numpy().tobytes()
        table = self._leader.number(chunk.sequence.cache)
        return [table, rows.before, list(rows.tokens), list(rows.positions), seen]
