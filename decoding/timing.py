r"""How long forwards take on this machine, at most could, and would have taken with plain decoding.

`time_forward` measures the embedded model at 400 tokens of context by

    python -c "from decoding.serving.load import load_text_decoder as load; \
    from decoding.timing import time_forward; \
    print(time_forward(load().target, [400], [0, 7, 15, 31, 63]))"

`PlainCost` knows plain steps and the price of rows. They are timed once at two context lengths (well under a second for the
embedded model), then kept in the cache. Between and beyond them a step's time is taken as linear in the context, because only
attention grows with it. Where forwards take less than a plain step is said to take, the machine was busy when that was timed,
and it is timed once more.
"""

import json
import os
import platform
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Self

import numpy as np

from decoding.checkpoints.cache_folder import cache_root
from decoding.engine.draft import Draft
from decoding.engine.experience import RowCosts
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput, TargetSequence
from decoding.serving.processes import processes_here
from decoding.serving.text_decoder import TextDecoder


def running_as(decoder: TextDecoder) -> str:
    """A loaded model's key, usable as a file name."""
    target = decoder.target
    name, dtype, runtime = decoder.name.replace(os.sep, "_"), target.weight_dtype, target.runtime
    count = processes_here()
    parts = [f"{count}_processes"] if count > 1 else []
    return "-".join((name, dtype, runtime, str(_threads(runtime)), *parts, platform.node()))


def _threads(runtime: str) -> int:
    if runtime == "kernels":
        from kernels.cpu.threads import thread_count

        return thread_count()
    import torch

    return torch.get_num_threads()


_READ_BYTES = 256 << 20  # more than a processor's caches hold
_REPEATS = 5


def measured_bytes_per_s() -> float:
    """Bytes that this machine's processors read from memory in a second, all at once; the best of several runs."""
    threads = os.cpu_count() or 1
    parts = np.array_split(np.ones(_READ_BYTES // 8, dtype=np.int64), threads)
    with ThreadPoolExecutor(threads) as pool:
        return max(_READ_BYTES / _seconds(pool, parts) for _ in range(_REPEATS))


def _seconds(pool: ThreadPoolExecutor, parts: "list[np.ndarray[tuple[int], np.dtype[np.int64]]]") -> float:
    start = perf_counter()
    list(pool.map(np.max, parts))
    return perf_counter() - start


def most_tokens_per_s(parameters: int, parameter_bytes: float, bytes_per_s: float) -> float:
    """Tokens per second without drafts, if nothing but reading takes time.

    >>> most_tokens_per_s(7_000_000_000, 1, 14e9)
    2.0
    """
    return bytes_per_s / (parameters * parameter_bytes)


_SEED = 0
_SETTLING = (
    2  # forwards before each measured one: a row after one of many rows takes an eighth longer than after its like
)


def time_forward(
    target: AnyTarget, contexts: Sequence[int], nodes: Sequence[int], repeats: int = 15
) -> dict[tuple[int, int], float]:
    """Median milliseconds of a `score` for each (context, nodes): `context` cached tokens, one pending, a chain of `nodes`.

    The target's greedy choices are included, the commit is not. All sizes are measured in turn, `repeats` times, each after
    forwards of its own size as in decoding, so that a slow moment of the machine affects them equally. Raises ValueError
    if a size exceeds the target's length.
    """
    measured: dict[tuple[int, int], list[float]] = {(context, count): [] for context in contexts for count in nodes}
    for context in contexts:
        with _prepared(target, context, max(nodes, default=0)) as (sequence, drafts):
            for _ in range(1 + repeats):
                for count in nodes:
                    times = [_score_ms(target, sequence, drafts[:count]) for _ in range(_SETTLING + 1)]
                    measured[context, count].append(times[-1])
    return {size: median(times[1:]) for size, times in measured.items()}  # the first of each warms up


@contextmanager
def _prepared(target: AnyTarget, context: int, nodes: int) -> Iterator[tuple[TargetSequence, list[int]]]:
    """A sequence with `context` random tokens cached, and random tokens for drafts."""
    if not 0 < context <= target.max_length - 1 - nodes:
        raise ValueError(
            f"a context of {context} and {nodes} nodes do not fit: the model takes {target.max_length} tokens"
        )
    draw = random.Random(_SEED)
    tokens = draw.choices(range(target.vocab_size), k=context)
    sequence = target.open(tokens, Sampler())
    try:
        if pending := tokens[sequence.cached :]:
            target.score([ForwardInput(sequence, pending, Draft())])
            target.commit(sequence, [])
        yield sequence, draw.choices(range(target.vocab_size), k=nodes)
    finally:
        target.close(sequence)


def _score_ms(target: AnyTarget, sequence: TargetSequence, chain: Sequence[int]) -> float:
    start = perf_counter()
    target.score([ForwardInput(sequence, [0], Draft.chain(chain))])
    return 1e3 * (perf_counter() - start)


_CONTEXTS = (128, 768)
_ROWS = (1, 4, 8, 16, 24, 32, 48)
_GPU_ROWS = (1, 8, 16, 32, 64, 128, 256)  # as many as all drafts of a forward may have
_PLAIN_COST_REPEATS = 7
_BELIEVED = 0.8  # of a plain step's time: forwards that take less contradict it


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of a plain step: `base_ms` + `per_token_ms` x context length. rows: what further rows add."""

    base_ms: float
    per_token_ms: float
    rows: RowCosts

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """From the JSON values that `asdict` makes. Raises KeyError, TypeError or ValueError for others."""
        rows = RowCosts(tuple(values["rows"]["rows"]), tuple(values["rows"]["steps"]))
        return cls(float(values["base_ms"]), float(values["per_token_ms"]), rows)

    def at(self, context: int, rows: int = 1) -> float:
        return self.base_ms * self.rows.at(rows) + self.per_token_ms * context


class PlainCost:
    """The plain-step cost of one loaded model, measured when first asked for."""

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder
        self._cost: StepCost | None = None
        self._is_doubted = False  # whether what was measured has been thrown away already

    def estimate_ms(self, rounds: Sequence[Round], prompt_tokens: int) -> float:
        """Plain decoding's time for the text of one sequence's `rounds`.

        The first round includes the prefill, which is the same for every decoder; each further forward that plain decoding
        would take costs one step, which is never more than the forwards of this text took. Contexts are taken to grow by one
        token a step: forced tokens between them are left out.
        """
        first, cost, seen = rounds[0], self.step_cost(), _usual_ms(rounds[1:])
        if seen < _BELIEVED * cost.at(prompt_tokens, first.prompts):
            self._doubt()
        forwards = sum(r.plain_forwards for r in rounds)
        contexts = range(prompt_tokens + 1, prompt_tokens + forwards)
        steps = (min(cost.at(context, first.prompts), seen) for context in contexts)
        return first.target_ms + first.verify_ms + sum(steps)

    def step_cost(self) -> StepCost:
        """The cost, from memory, from the cache, or by measuring."""
        if self._cost is None:
            self._cost = self._load() or self._measure()
        return self._cost

    def _doubt(self) -> None:
        """Have it measured again, once in a process."""
        if not self._is_doubted:
            self._is_doubted, self._cost = True, None
            with suppress(OSError):
                self._path().unlink(missing_ok=True)

    def _load(self) -> StepCost | None:
        try:
            values = json.loads(self._path().read_text())
            return StepCost.read(values) if values["kernels"] == self._kernels() else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _measure(self) -> StepCost:
        longest = self._decoder.target.max_length - 1
        near, far = (min(context, longest) for context in _CONTEXTS)
        times = self._decoder.alone(lambda target: time_forward(target, contexts=(near, far), nodes=(0,)))
        slope = max(times[far, 0] - times[near, 0], 0.0) / (far - near) if far > near else 0.0
        cost = StepCost(times[near, 0] - slope * near, slope, self._decoder.alone(_row_costs))
        if _will_vanish(self._decoder.name):
            return cost
        with suppress(OSError):  # no room, or not ours to write: it is measured again
            self._path().parent.mkdir(parents=True, exist_ok=True)
            self._path().write_text(json.dumps(asdict(cost) | {"kernels": self._kernels()}))
        return cost

    def _kernels(self) -> str:
        """What changes with our own kernels, so that times of other ones are not believed; "" where none run."""
        if self._decoder.target.runtime != "kernels":
            return ""
        from decoding.targets.int8.compiled import source_key

        return source_key()

    def row_costs(self) -> RowCosts | None:
        """What rows cost on this machine; None before it was measured. Measures nothing."""
        if self._cost is None:
            self._cost = self._load()
        return self._cost.rows if self._cost else None

    def _path(self) -> Path:
        return cache_root() / "costs" / f"{running_as(self._decoder)}.json"


def _usual_ms(rounds: Sequence[Round]) -> float:
    """The median of forwards that no other text shared; infinite without one."""
    alone = [each.target_ms for each in rounds if each.batch == each.prompts]
    return median(alone) if alone else inf


def _will_vanish(model: str) -> bool:
    """Whether a model lies in a temporary folder, so that nobody could use what is known of it later. A cache folder that is
    temporary too keeps it as long as itself."""
    temporary = Path(tempfile.gettempdir()).resolve()
    return Path(model).resolve().is_relative_to(temporary) and not cache_root().resolve().is_relative_to(temporary)


def measured_rows(runtime: str) -> tuple[int, ...]:
    """The rows of the forwards that are timed for a table, for what computes them (`Target.runtime`)."""
    return _GPU_ROWS if runtime == "cuda" else _ROWS


def _row_costs(target: AnyTarget) -> RowCosts:
    """Measured in turn; for a target that is too short for some sizes, time is taken to go on as before them."""
    sizes = measured_rows(target.runtime)
    context = max(min(_CONTEXTS[0], target.max_length - max(sizes)), 1)
    rows = [count for count in sizes if count <= target.max_length - context]
    if len(rows) == 1:
        return RowCosts.even(0.0)
    times = time_forward(target, (context,), [count - 1 for count in rows], _PLAIN_COST_REPEATS)
    return RowCosts.measured(rows, [times[context, count - 1] for count in rows])
