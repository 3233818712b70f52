"""Totals of step records: what fast decoding saved over several steps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Savings:
    """Sums over the steps that a model decoded; times in milliseconds. `plain_ms` is None unless known for every step.

    `source` says how plain decoding's time is known: "measured", "estimated", "same", or several of them.
    """

    new_tokens: int
    target_forwards: int
    plain_forwards: int  # what plain decoding takes for the same texts under the same grammar
    prompt_tokens: int
    cached_tokens: int
    wall_ms: float
    plain_ms: float | None
    source: str

    @property
    def fewer_forwards(self) -> float | None:
        """As `decoding.engine.records.metrics` defines it: tokens that the grammar forces do not count."""
        return self.plain_forwards / self.target_forwards if self.target_forwards else None

    @property
    def saved_ms(self) -> float | None:
        return None if self.plain_ms is None else self.plain_ms - self.wall_ms

    @property
    def speedup(self) -> float | None:
        return self.plain_ms / self.wall_ms if self.plain_ms is not None and self.wall_ms else None


def savings(steps: Iterable[Mapping[str, Any]]) -> Savings:
    """Totals of `agent.observe.step_record.Step` records as dicts; steps without a model add their time only."""
    steps = list(steps)
    plain = [step["plain_ms"] for step in steps]
    sources = {step["plain_ms_source"] for step in steps if step["decoder"]} - {None}
    return Savings(
        new_tokens=sum(step["new_tokens"] for step in steps),
        target_forwards=sum(step["target_forwards"] for step in steps),
        plain_forwards=sum(step["plain_forwards"] for step in steps),
        prompt_tokens=sum(step["prompt_tokens"] for step in steps),
        cached_tokens=sum(step["cached_tokens"] for step in steps),
        wall_ms=sum(step["wall_ms"] for step in steps),
        plain_ms=None if None in plain else sum(plain),
        source=" and ".join(sorted(sources)),
    )
