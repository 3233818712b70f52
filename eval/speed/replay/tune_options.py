"""Finds the fastest options of a decoding method on this machine by coordinate descent.

Options are tuned one after the other: the same texts are decoded with each value of an option, all other options fixed, and
the value with the most tokens per second is kept if it beats the current one by more than noise. A sweep that changes
nothing is the last. The texts are the agent's own, first recorded with plain decoding (see `eval.speed.replay.methods`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from agent.assemble import ModelChoice
from agent.graph.toolbox import AgentOptions
from decoding.methods.registry import method_options
from eval.accuracy.run import fingerprint
from eval.datasets.official import Example
from eval.predict.record import RecordLog
from eval.speed.agent_calls import Call, CallRecorder, agent_calls, plain_model
from eval.speed.replay.methods import PLAIN, Measured, MethodSpec, replay

SPACE: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "jacobi_forcing": {
        "block_size": (2, 4, 8, 12, 16, 24, 32),
        "blocks": (1, 2, 3, 4),
        "spawn_ratio": (0.0, 0.4, 0.85),
        "pool_size": (0, 4, 8, 16),
        "candidates": (0, 1, 2, 3, 5),
        "candidate_tokens": (4, 8, 12, 16),
        "per_matched": (2, 3, 4, 8),
    },
    "jacobi": {"block_size": (4, 6, 8, 12, 16, 24), "refill": (False, True)},
    "lookahead": {"window": (2, 3, 5, 7), "ngram": (3, 4, 5), "guesses": (3, 5, 7)},
}
NOISE = 1.01  # a new value must be at least this many times as fast as the current one


@dataclass(frozen=True, slots=True)
class Tried:
    """Options measured on all texts, in turn with the others of the same `trial`."""

    id: str
    trial: str  # sweep and option, or "start" and "end" for the comparison with plain decoding
    options: dict[str, Any] | None  # None for plain decoding
    text_tokens: int
    forwards: int
    wall_ms: float

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record in a line. Raises KeyError for a missing field."""
        return cls(**{item.name: values[item.name] for item in fields(cls)})

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.text_tokens / self.wall_ms


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is tuned. `space`: values by option; the search starts at the method's defaults."""

    decoder: str
    space: Mapping[str, Sequence[Any]]
    choice: ModelChoice
    agent: AgentOptions
    sweeps: int = 2
    timeout_s: float = 30.0

    def settings(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Everything on which the records depend, as JSON values."""
        return {**asdict(self), "questions": fingerprint(examples)}


def tune(
    tuning: Tuning, examples: Sequence[Example], out: Path, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Find the best options and return the summary. Called again on the same `out`, it continues with the next trial.

    Raises ResumeError if `out` holds another run, and what loading and asking raise.
    """
    log = RecordLog(out, tuning.settings(examples), Tried)
    try:
        say("recording what the agent asks")
        answered = list(agent_calls(plain_model(tuning.choice), examples, tuning.agent, tuning.timeout_s))
        calls = [call for _, _, _, own in answered for call in own]
        trials = _Trials(tuning.decoder, answered[0][0], calls, log, say)
        best = descend(_defaults(tuning), tuning.space, tuning.sweeps, trials.run)
        plain, default, tuned = trials.run("end", [None, _defaults(tuning), best])
    finally:
        log.close()
    return {
        "decoder": tuning.decoder,
        "best": best,
        "texts": len(calls),
        "tokens_per_s": tuned.tokens_per_s,
        "speedup": tuned.tokens_per_s / plain.tokens_per_s,
        "speedup_of_defaults": default.tokens_per_s / plain.tokens_per_s,
        "trials": [asdict(tried) | {"tokens_per_s": tried.tokens_per_s} for tried in log.records],
    }


def descend(
    start: Mapping[str, Any],
    space: Mapping[str, Sequence[Any]],
    sweeps: int,
    run: Callable[[str, Sequence[dict[str, Any]]], list[Tried]],
) -> dict[str, Any]:
    """The fastest options by coordinate descent from `start`. run(trial, points): returns a record for each point, in order."""
    best = dict(start)
    for sweep in range(sweeps):
        before = best
        for option, values in space.items():
            points = [best | {option: value} for value in dict.fromkeys([best[option], *values])]
            stood, *others = run(f"{sweep}/{option}", points)
            fastest = max(others, key=lambda tried: tried.tokens_per_s, default=stood)
            if fastest.tokens_per_s > NOISE * stood.tokens_per_s:
                best = fastest.options or best
        if best == before:
            break
    return best


def _defaults(tuning: Tuning) -> dict[str, Any]:
    defaults = method_options(tuning.decoder)
    return {option: defaults[option] for option in tuning.space}


class _Trials:
    """Measures the points of a trial in turn, text by text; what is already in the log is not measured again."""

    def __init__(
        self,
        decoder: str,
        recorder: CallRecorder,
        calls: Sequence[Call],
        log: RecordLog[Tried],
        say: Callable[[str], None],
    ) -> None:
        self._decoder, self._recorder, self._calls, self._log, self._say = decoder, recorder, calls, log, say

    def run(self, trial: str, points: Sequence[dict[str, Any] | None]) -> list[Tried]:
        """A record for each point, in order; equal points share one."""
        keys = [f"{trial} {json.dumps(point)}" for point in points]
        wanted = dict(zip(keys, points, strict=True))
        known = {tried.id: tried for tried in self._log.records}
        if not wanted.keys() <= known.keys():
            self._say(f"trial {trial}: {len(points)} points")
            for tried in self._measured(trial, wanted):
                if tried.id not in known:
                    self._log.append(tried)
                known[tried.id] = tried
        return [known[key] for key in keys]

    def _measured(self, trial: str, points: Mapping[str, dict[str, Any] | None]) -> list[Tried]:
        specs = [MethodSpec(key, PLAIN.decoder if p is None else self._decoder, p or {}) for key, p in points.items()]
        runs: list[Measured] = []
        for number, call in enumerate(self._calls):
            turn = number % len(specs)
            runs += replay(self._recorder, call, [*specs[turn:], *specs[:turn]])
        return [_tried(trial, key, point, [run for run in runs if run.method == key]) for key, point in points.items()]


def _tried(trial: str, key: str, point: dict[str, Any] | None, runs: Sequence[Measured]) -> Tried:
    tokens, forwards = sum(run.text_tokens for run in runs), sum(run.forwards for run in runs)
    return Tried(key, trial, point, tokens, forwards, sum(run.wall_ms for run in runs))
