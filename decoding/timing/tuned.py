"""Predicts and stores the decoding method that is fastest for a model on this machine.

A forward's time is measured by context and nodes, and a method's acceptance by decoding texts with it. A method's predicted
time is then a sum over its rounds, which the machine's other load disturbs less than it would disturb a race between methods.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from decoding.checkpoints.fetch.cache_folder import cache_root
from decoding.engine.records.rounds import Round
from decoding.methods.registry import load_method


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """Milliseconds of a forward of one sequence: for each number of draft nodes, a linear function of the context."""

    nodes: tuple[int, ...]  # ascending, at least two
    base_ms: tuple[float, ...]
    per_token_ms: tuple[float, ...]  # of context

    @classmethod
    def fit(cls, times: Mapping[tuple[int, int], float]) -> Self:
        """Fit milliseconds by (context, nodes), as `forward_timing.time_forward` returns them, by least squares: one line per
        number of nodes.
        """
        lines = {}
        for count in sorted({count for _, count in times}):
            points = [(context, ms) for (context, nodes), ms in times.items() if nodes == count]
            contexts, ms = np.array(points, dtype=float).T
            slope, base = np.polyfit(contexts, ms, 1) if len(points) > 1 else (0.0, ms[0])
            lines[count] = (float(base), float(slope)) if slope > 0 else (float(ms.mean()), 0.0)
        return cls(tuple(lines), *(tuple(part) for part in zip(*lines.values(), strict=True)))

    def at(self, context: int, nodes: int) -> float:
        """Milliseconds at a context and a number of nodes, linear between the measured numbers and beyond the last."""
        ms = [base + slope * context for base, slope in zip(self.base_ms, self.per_token_ms, strict=True)]
        upper = min(max(int(np.searchsorted(self.nodes, nodes)), 1), len(self.nodes) - 1)
        (left, right), (low, high) = self.nodes[upper - 1 : upper + 1], ms[upper - 1 : upper + 1]
        return low + (high - low) * (nodes - left) / (right - left)

    def of(self, rounds: Sequence[Round], prompt_tokens: int) -> float:
        """Milliseconds of one sequence's rounds: forwards as predicted, drafting and verifying as recorded."""
        ms, context = 0.0, prompt_tokens - rounds[0].pending
        for r in rounds:
            ms += self.at(context, r.pending + len(r.draft_tokens) - 1) + r.draft_ms + r.verify_ms
            context += r.pending + len(r.accepted)
        return ms


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `sqlagent tune` found for one model on one machine."""

    decoder: str
    options: Mapping[str, Any]
    speedup: float  # predicted, over plain decoding
    speedup_of_default: float  # of the decoder that is used without tuning
    text_tokens_per_forward: float  # forced ones included
    cost: ForwardCost

    def save(self, key: str) -> Path:
        """Keep it under a key of `decoding.timing.machine_key`."""
        path = tuned_folder() / f"{key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        return path


def load_tuned(key: str) -> Tuned | None:
    """What was kept under `key`; None if there is nothing, or nothing that this release understands."""
    try:
        values = json.loads((tuned_folder() / f"{key}.json").read_text(encoding="utf-8"))
        load_method(values["decoder"], **values["options"])
        cost = {name: tuple(numbers) for name, numbers in values.pop("cost").items()}
        return Tuned(**values, cost=ForwardCost(**cost))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def tuned_folder() -> Path:
    return cache_root() / "tuned"
