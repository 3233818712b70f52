"""How the cost of decoding grows, and the lower bound of this machine.

Measures how the cost of decoding grows with the context, the draft, the batch, and the size of the schema.
"""

import json
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from agent.assemble import LoadedModel
from agent.conversation import Conversation
from decoding.checkpoints.catalog import resolve
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput
from decoding.serving.text_decoder import TextDecoder
from decoding.timing import time_forward
from tools.databases.open_database import open_database

_MOST_READ = 256 << 20  # bytes: fewer where the model has fewer, as caches hold a part of them
_MATRIX = 1024  # rows and columns
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Floor:
    """The size of a model's matrices, and this machine's speed with the threads and the device that are used."""

    weight_bytes: int  # read by every forward
    multiplications: int  # per row; one for each parameter
    bytes_per_s: float
    flops_per_s: float

    def ms(self, rows: int) -> float:
        """Least milliseconds for a forward of `rows` rows without attention, if reading and multiplying overlap fully."""
        return 1e3 * max(self.weight_bytes / self.bytes_per_s, 2 * rows * self.multiplications / self.flops_per_s)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"plain_step_ms": self.ms(1), "draft_of_16_ms": self.ms(17)}


def measure_floor(decoder: TextDecoder) -> Floor:
    """Measure the floor as the best of several runs, since that is when nothing else disturbs the machine."""
    head = torch.as_tensor(decoder.target.lm_head)
    layers = _layer_parameters(decoder.name)
    is_small = decoder.target.weight_dtype == "int8"
    weight_bytes = (layers + head.numel()) * (1 if is_small else head.itemsize)
    read = torch.ones(min(weight_bytes, _MOST_READ) // 4, device=head.device)
    left, right = torch.zeros(2, _MATRIX, _MATRIX, dtype=head.dtype, device=head.device)
    if is_small:
        left, right = left.to(torch.int8), right.to(torch.int8)
    multiply = torch._int_mm if is_small else torch.mm
    return Floor(
        weight_bytes=weight_bytes,
        multiplications=layers + head.numel(),
        bytes_per_s=4 * read.numel() / _best_s(lambda: torch.dot(read, read)),
        flops_per_s=2 * _MATRIX**3 / _best_s(lambda: multiply(left, right)),
    )


def _layer_parameters(name: str) -> int:
    """Number of parameters in the layers' matrices."""
    folder = resolve(name)
    return sum(tensor.numel() for key, tensor in read_weights(folder) if ".layers." in key and tensor.dim() == 2)


def _best_s(do: Callable[[], torch.Tensor]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = perf_counter()
        do().flatten()[0].item()  # waits for the device
        times.append(perf_counter() - start)
    return min(times)


CONTEXTS = (64, 256, 512, 1024, 2048, 4096, 8192)  # tokens
DRAFTS = (0, 1, 3, 7, 15, 31, 63, 127)  # nodes
BATCHES = (1, 2, 4, 8, 16)  # sequences
SCHEMAS = (10, 30, 100, 300, 1000)  # tables
CONTEXT = 400  # tokens of context at which draft and batch are measured
QUESTION = "How many items have a price above 10?"
_SEED = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One measured size."""

    varied: str  # context, draft, batch, schema, rows
    size: int
    ms: float  # median of a forward or, for a schema, of a whole question
    detail: dict[str, float]  # further figures measured at this size


Say = Callable[[str], None]


def measure_cost(
    loaded: LoadedModel,
    folder: Path,
    repeats: int = 5,
    say: Say = lambda text: None,
) -> list[Point]:
    """Measure all four sweeps. Sizes that the model does not support are left out."""
    target_of = loaded.decoder.alone
    say("context")
    points = target_of(lambda target: list(_contexts(target, repeats)))
    say("draft")
    points += target_of(lambda target: list(_drafts(target, repeats)))
    say("batch")
    points += target_of(lambda target: list(_batches(target, repeats)))
    for tables in SCHEMAS:
        say(f"schema of {tables} tables")
        points.append(_schema(loaded, folder, tables))
    return points


def _contexts(target: AnyTarget, repeats: int) -> Iterator[Point]:
    longest = target.max_length - 17
    contexts = sorted({min(context, longest) for context in CONTEXTS})
    times = time_forward(target, contexts, (0, 16), repeats)
    for context in contexts:
        yield Point("context", context, times[context, 0], {"draft_of_16_ms": times[context, 16]})


def _drafts(target: AnyTarget, repeats: int) -> Iterator[Point]:
    context = min(CONTEXT, target.max_length - 1 - max(DRAFTS))
    times = time_forward(target, (context,), DRAFTS, repeats)
    for nodes in DRAFTS:
        yield Point("draft", nodes, times[context, nodes], {"plain_steps": times[context, nodes] / times[context, 0]})


def _batches(target: AnyTarget, repeats: int) -> Iterator[Point]:
    """Measure plain steps of several sequences in one forward, and the same with a draft of 8 nodes for each sequence."""
    draw = random.Random(_SEED)
    context = min(CONTEXT, target.max_length - 10)
    draft = Draft.chain(draw.choices(range(target.vocab_size), k=8))
    with ExitStack() as opened:
        sequences = []
        for _ in range(max(BATCHES)):
            tokens = draw.choices(range(target.vocab_size), k=context)
            sequence = target.open(tokens, Sampler())
            opened.callback(target.close, sequence)
            target.score([ForwardInput(sequence, tokens[sequence.cached :], Draft())])
            target.commit(sequence, [])
            sequences.append(sequence)
        for count in BATCHES:
            plain, drafted = (
                _median_ms(target, [ForwardInput(one, [0], each) for one in sequences[:count]], repeats)
                for each in (Draft(), draft)
            )
            yield Point("batch", count, plain, {"plain_tokens_per_s": 1e3 * count / plain, "draft_of_8_ms": drafted})


def _median_ms(target: AnyTarget, work: Sequence[ForwardInput[Any]], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):  # the first is a warm-up
        start = perf_counter()
        target.score(work)
        times.append(1e3 * (perf_counter() - start))
    return median(times[1:])


def _schema(loaded: LoadedModel, folder: Path, tables: int) -> Point:
    """Time a question about a database of `tables` tables from a cold start: its values are indexed, its grammar is built."""
    database = open_database(_database(folder / f"{tables}-tables.sqlite", tables), engine="sqlite")
    try:
        toolbox = loaded.toolbox(database)
        toolbox.estimate_plain = None
        answer = Conversation(toolbox).ask(QUESTION).checked()
    finally:
        database.close()
    steps = answer.steps
    model_ms = sum(step["wall_ms"] for step in steps if step["decoder"])
    prompt = max((step["prompt_tokens"] for step in steps), default=0)
    return Point("schema", tables, answer.total_ms, {"model_ms": model_ms, "longest_prompt": prompt})


def _database(path: Path, tables: int) -> Path:
    """Create tables of five columns and three rows, each but the first with a foreign key to the one before."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    for i in range(tables):
        name = "items" if i == 0 else f"part_{i}"
        before = "items" if i < 2 else f"part_{i - 1}"
        connection.execute(
            f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, name TEXT, price REAL, made DATE, "
            f"before_id INTEGER REFERENCES {before}(id))"
        )
        rows = [(j, f"name {i} {j}", 7.5 * j, "2026-01-01", j) for j in range(3)]
        connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def write(points: Iterable[Point], out: Path) -> None:
    """Write cost.json."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "cost.json").write_text(json.dumps([asdict(point) for point in points], indent=2) + "\n", encoding="utf-8")
