"""One record per step of the agent: tokens, forwards, time, and the time that plain decoding would have taken."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage

from decoding.engine.records.metrics import measure
from decoding.engine.records.rounds import Round
from decoding.serving.chat_model import rounds_of

PlainSource = Literal["measured", "estimated", "same"]
PlainTime = Callable[[Sequence[Round], int], float]  # (rounds, prompt tokens) -> plain decoding's milliseconds


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
    name: str, messages: Sequence[AIMessage], wall_ms: float, plain_time: PlainTime | None, measured: bool = False
) -> Step:
    """The record of one model call, which gave one message or several that were decoded together."""
    per_message = [rounds_of(message) for message in messages]
    rounds = [r for each in per_message for r in each]
    metrics = measure(rounds)
    usage = [message.usage_metadata for message in messages if message.usage_metadata]
    prompt_tokens = usage[0]["input_tokens"] if usage else 0
    decoder = messages[0].response_metadata.get("decoder")
    plain_ms, source = _plain(decoder, per_message, wall_ms, prompt_tokens, plain_time, measured)
    return Step(
        name=name,
        wall_ms=wall_ms,
        plain_ms=plain_ms,
        plain_ms_source=source,
        decoder=decoder,
        prompt_tokens=prompt_tokens,
        cached_tokens=usage[0].get("input_token_details", {}).get("cache_read", 0) if usage else 0,
        new_tokens=sum(each["output_tokens"] for each in usage),
        target_forwards=metrics.target_forwards,
        plain_forwards=metrics.plain_forwards,
        tokens_per_forward=metrics.tokens_per_forward if rounds else None,
        forced_tokens=metrics.forced_tokens,
    )


def _plain(
    decoder: str | None,
    per_message: Sequence[Sequence[Round]],
    wall_ms: float,
    prompt_tokens: int,
    plain_time: PlainTime | None,
    measured: bool,
) -> tuple[float | None, PlainSource | None]:
    if decoder == "plain":
        return wall_ms, "same"
    if plain_time is None or not any(per_message):
        return None, None
    decoding_ms = measure([r for rounds in per_message for r in rounds]).wall_ms
    around_ms = wall_ms - decoding_ms  # tokenising and the like: the same under every decoder
    longest = max(plain_time(rounds, prompt_tokens) for rounds in per_message if rounds)
    return longest + max(around_ms, 0.0), "measured" if measured else "estimated"
