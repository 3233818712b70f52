"""What a step of the agent cost: tokens, forwards and time, and what fast decoding saved.

One record per step of the agent: tokens, forwards, time, and the time that plain decoding would have taken.

Totals of step records: what fast decoding saved over several steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from decoding.engine.rounds import Round, measure

PlainSource = Literal["measured", "estimated", "same"]
PlainTime = Callable[[Sequence[Round], int], float]  # (rounds, prompt tokens) -> plain decoding's milliseconds


class Written(Protocol):
    """A text that a model wrote: a `decoding.serving.text_decoder.Completion`, or what an endpoint tells of one."""

    @property
    def text(self) -> str: ...

    @property
    def rounds(self) -> tuple[Round, ...]: ...

    @property
    def log_probs(self) -> tuple[float, ...]: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...

    @property
    def new_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `plain_ms`: the time that it would take with plain decoding; `plain_ms_source`: how that is known.

    "same": the step decodes nothing, or decodes plainly. "estimated": from plain decoding timed on this machine.
    "measured": the step was also decoded plainly. Steps without a model have decoder None and no tokens.
    """

    name: str
    wall_ms: float
    plain_ms: float | None
    plain_ms_source: PlainSource | None
    decoder: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    target_forwards: int = 0
    plain_forwards: int = 0  # what plain decoding takes for the same text under the same grammar
    tokens_per_forward: float | None = None
    forced_tokens: int = 0
    detail: str = ""  # the outcome in one line

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tool_step(name: str, wall_ms: float, detail: str = "") -> Step:
    return Step(name, wall_ms, wall_ms, "same", detail=detail)


def model_step(
    name: str,
    written: Sequence[Written],
    decoder: str | None,
    wall_ms: float,
    plain_time: PlainTime | None,
    measured: bool = False,
) -> Step:
    """The record of one model call, which gave one text or several that were decoded together."""
    per_text = [each.rounds for each in written]
    rounds = [r for each in per_text for r in each]
    metrics = measure(rounds)
    prompt_tokens = written[0].prompt_tokens
    plain_ms, source = _plain(decoder, per_text, wall_ms, prompt_tokens, plain_time, measured)
    return Step(
        name=name,
        wall_ms=wall_ms,
        plain_ms=plain_ms,
        plain_ms_source=source,
        decoder=decoder,
        prompt_tokens=prompt_tokens,
        cached_tokens=written[0].cached_tokens,
        new_tokens=sum(each.new_tokens for each in written),
        target_forwards=metrics.target_forwards,
        plain_forwards=metrics.plain_forwards,
        tokens_per_forward=metrics.tokens_per_forward if rounds else None,
        forced_tokens=metrics.forced_tokens,
    )


def _plain(
    decoder: str | None,
    per_text: Sequence[Sequence[Round]],
    wall_ms: float,
    prompt_tokens: int,
    plain_time: PlainTime | None,
    measured: bool,
) -> tuple[float | None, PlainSource | None]:
    if decoder == "plain":
        return wall_ms, "same"
    if plain_time is None or not any(per_text):
        return None, None
    decoding_ms = measure([r for rounds in per_text for r in rounds]).wall_ms
    around_ms = wall_ms - decoding_ms  # tokenising and the like: the same under every decoder
    longest = max(plain_time(rounds, prompt_tokens) for rounds in per_text if rounds)
    return longest + max(around_ms, 0.0), "measured" if measured else "estimated"


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
        """As `decoding.engine.rounds` defines it: tokens that the grammar forces do not count."""
        return self.plain_forwards / self.target_forwards if self.target_forwards else None

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
