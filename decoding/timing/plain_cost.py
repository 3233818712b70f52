"""Estimates how long plain decoding would have taken, from plain steps timed on this machine for this model, and says what rows
cost here.

They are timed once at two context lengths (well under a second for the embedded model), then kept in the cache. Between and
beyond them a step's time is taken as linear in the context, because only attention grows with it. Where forwards take less
than a plain step is said to take, the machine was busy when that was timed, and it is timed once more.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Self

from decoding.checkpoints.fetch.cache_folder import cache_root
from decoding.engine.records.rounds import Round
from decoding.engine.records.row_costs import RowCosts
from decoding.engine.target import AnyTarget
from decoding.serving.text_decoder import TextDecoder
from decoding.timing.forward_timing import time_forward
from decoding.timing.machine_key import running_as

_CONTEXTS = (128, 768)
_ROWS = (1, 4, 8, 16, 24, 32, 48)
_REPEATS = 7
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


def _row_costs(target: AnyTarget) -> RowCosts:
    """Measured in turn; for a target that is too short for some sizes, time is taken to go on as before them."""
    context = max(min(_CONTEXTS[0], target.max_length - max(_ROWS)), 1)
    rows = [count for count in _ROWS if count <= target.max_length - context]
    if len(rows) == 1:
        return RowCosts.even(0.0)
    times = time_forward(target, (context,), [count - 1 for count in rows], _REPEATS)
    return RowCosts.measured(rows, [times[context, count - 1] for count in rows])
