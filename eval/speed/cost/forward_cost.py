"""Measures how the cost of decoding grows with the context, the draft, the batch, and the size of the schema."""

import json
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from agent.assemble import LoadedModel
from agent.conversation.conversation import Conversation
from decoding.engine.draft import Draft
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget, Work
from decoding.timing.forward_timing import time_forward, time_side_by_side
from eval.speed.cost.line_chart import charts
from tools.databases.open_database import open_database

CONTEXTS = (64, 256, 512, 1024, 2048, 4096, 8192)  # tokens
DRAFTS = (0, 1, 3, 7, 15, 31, 63, 127)  # nodes
ROWS = (1, 8, 16, 32, 64)  # of a forward: the last token and a draft
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
    ms: float  # median of a forward (for rows: the least) or, for a schema, of a whole question
    detail: dict[str, float]  # further figures measured at this size


Say = Callable[[str], None]


def measure_cost(
    loaded: LoadedModel,
    folder: Path,
    repeats: int = 5,
    say: Say = lambda text: None,
    beside: Mapping[str, AnyTarget] | None = None,
) -> list[Point]:
    """Measure all five sweeps. Sizes that the model does not support are left out.

    beside: other targets by name, timed by rows in turn with the model's own.
    """
    target_of = loaded.decoder.alone
    say("rows")
    rows = target_of(lambda target: list(_rows({"": target, **(beside or {})}, repeats)))
    say("context")
    points = target_of(lambda target: list(_contexts(target, repeats)))
    say("draft")
    points += target_of(lambda target: list(_drafts(target, repeats)))
    say("batch")
    points += target_of(lambda target: list(_batches(target, repeats)))
    for tables in SCHEMAS:
        say(f"schema of {tables} tables")
        points.append(_schema(loaded, folder, tables))
    return rows + points  # a terminal shows the first lines


def _rows(targets: Mapping[str, AnyTarget], repeats: int) -> Iterator[Point]:
    """Forwards by their rows, and how many one-row forwards of the same target each of them takes."""
    context = min(CONTEXT, *(target.max_length - 1 - max(ROWS) for target in targets.values()))
    times = time_side_by_side(targets, context, [rows - 1 for rows in ROWS], repeats)
    for rows in ROWS:
        detail: dict[str, float] = {}
        for name in targets:
            ms, start = times[name, rows - 1], f"{name}_" if name else ""
            detail |= {f"{start}one_row": ms / times[name, 0]} | ({f"{start}ms": ms} if name else {})
        yield Point("rows", rows, times["", rows - 1], detail)


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
            target.score([Work(sequence, tokens[sequence.cached :], Draft())])
            target.commit(sequence, [])
            sequences.append(sequence)
        for count in BATCHES:
            plain, drafted = (
                _median_ms(target, [Work(one, [0], each) for one in sequences[:count]], repeats)
                for each in (Draft(), draft)
            )
            yield Point("batch", count, plain, {"plain_tokens_per_s": 1e3 * count / plain, "draft_of_8_ms": drafted})


def _median_ms(target: AnyTarget, work: Sequence[Work[Any]], repeats: int) -> float:
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
    """Write cost.json and cost.svg."""
    points = list(points)
    out.mkdir(parents=True, exist_ok=True)
    (out / "cost.json").write_text(json.dumps([asdict(point) for point in points], indent=2) + "\n", encoding="utf-8")
    names = {
        "context": ("a plain step by context", "tokens of context", "ms"),
        "draft": (f"a forward by draft, {CONTEXT} tokens of context", "draft nodes", "ms"),
        "batch": ("plain tokens a second by batch", "sequences", "tokens/s"),
        "schema": ("a question by schema", "tables", "ms"),
    }
    panels = [
        (*words, [(p.size, p.detail.get("plain_tokens_per_s", p.ms)) for p in points if p.varied == varied])
        for varied, words in names.items()
    ]
    (out / "cost.svg").write_text(charts([panel for panel in panels if panel[3]]), encoding="utf-8")
