"""`/v1/chat/completions`: the model with OpenAI's API, and constrained answers.

A request is read as OpenAI's clients send it, and a completion's JSON is written as they read it, whole or in pieces. A field
that is not supported is refused, unless its value changes nothing: what a caller asked for is never silently ignored. The
automaton over tokens for `response_format` is llguidance's (github.com/guidance-ai/llguidance).
"""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from decoding.engine.constraint import Mask
from decoding.engine.rounds import measure
from decoding.engine.sampler import Sampler, Shaping
from decoding.serving.text_decoder import Completion
from decoding.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from starlette.requests import Request

    from decoding.engine.constraint import Constraint
    from decoding.serving.text_decoder import SamplingParams, TextDecoder, TextDelta, TokenScore


LONGEST_GRAMMAR = 200_000  # characters


class FormError(ValueError):
    """A form that cannot be prescribed; the message is one line that says why."""


class Point:
    """A state: what has been written. Immutable but for the mask that it keeps."""

    __slots__ = ("mask", "matcher")

    def __init__(self, matcher: "LLMatcher") -> None:
        self.matcher = matcher
        self.mask: Mask | None = None


class StructuredOutput:
    """A grammar of llguidance as a `Constraint`; see there. `size`: width of the logits."""

    def __init__(self, grammar: str, tokenizer: Tokenizer, size: int) -> None:
        """Raises FormError."""
        from llguidance import LLMatcher

        if len(grammar) > LONGEST_GRAMMAR:
            raise FormError(f"it has {len(grammar):,} characters; at most {LONGEST_GRAMMAR:,} are taken")
        self._stop, self._size = sorted(tokenizer.stop_ids), size
        self._begin = LLMatcher(_vocabulary(tokenizer, size), grammar, log_level=0)
        if self._begin.is_error():
            raise FormError(_one_line(self._begin.get_error()))

    def start(self) -> Point:
        return Point(self._begin.deep_copy())

    def allowed(self, state: Point) -> Mask:
        if state.mask is None:
            state.mask = self._mask(state.matcher)
        return state.mask

    def admits(self, state: Point, token: int) -> bool:
        if token in self._stop:
            return bool(state.matcher.is_accepting() or self.allowed(state)[token])
        return token < self._size and state.matcher.validate_tokens([token]) == 1

    def step(self, state: Point, token: int) -> Point:
        matcher = state.matcher.deep_copy()
        matcher.consume_token(token)
        return Point(matcher)

    def forced(self, state: Point) -> tuple[int, ...]:
        return () if state.matcher.is_stopped() else tuple(state.matcher.compute_ff_tokens())

    def _mask(self, matcher: "LLMatcher") -> Mask:
        """A matcher that gave up, because a limit of its own was reached, lets the text end."""
        mask = np.zeros(self._size, dtype=np.bool_)
        if matcher.is_stopped():
            mask[self._stop] = True
            return mask
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        mask[:] = np.unpackbits(bits, bitorder="little")[: self._size]
        if matcher.is_accepting() or not mask.any():
            mask[self._stop] = True
        return mask


def json_form(schema: Mapping[str, Any] | None, tokenizer: Tokenizer, size: int) -> StructuredOutput:
    """JSON by a schema on one line, compact; any JSON object without one. Raises FormError."""
    from llguidance import LLMatcher

    try:
        wanted = json.dumps({"type": "object"} if schema is None else schema)
        grammar = LLMatcher.grammar_from_json_schema(wanted, {"whitespace_flexible": False})
    except ValueError as error:
        raise FormError(_one_line(str(error))) from error
    return StructuredOutput(grammar, tokenizer, size)


def regex_form(pattern: str, tokenizer: Tokenizer, size: int) -> StructuredOutput:
    """A text that a regular expression matches as a whole. Raises FormError."""
    from llguidance import LLMatcher

    return StructuredOutput(LLMatcher.grammar_from_regex(pattern), tokenizer, size)


def choice_form(texts: Sequence[str], tokenizer: Tokenizer, size: int) -> StructuredOutput:
    """One of the texts. Raises FormError."""
    from llguidance import LLMatcher

    grammar = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return StructuredOutput(LLMatcher.grammar_from_lark(grammar), tokenizer, size)


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, size: int) -> "LLTokenizer":
    from llguidance import LLTokenizer

    return LLTokenizer(tokenizer.serialised(), n_vocab=size, eos_token=sorted(tokenizer.stop_ids))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


DEFAULT_MAX_TOKENS = 512
MOST_CHOICES = 16
MOST_ALTERNATIVES = 20

# What would change the text, with the values that do not, and what to do instead.
NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "logit_bias": (({},), "logits are not changed: leave it out, or constrain the text with response_format"),
    "tools": (([],), "tools are not called: leave it out, or constrain the text with response_format"),
    "functions": (([],), "functions are not called: leave it out, or constrain the text with response_format"),
    "tool_choice": (("none", "auto"), "tools are not called: leave it out"),
    "modalities": ((["text"],), "only text is written: leave it out"),
    "audio": ((), "only text is written: leave it out"),
}


_TRACKING = {"user", "metadata", "store", "service_tier", "safety_identifier", "request_id", "priority"}
_CACHING = {"prompt_cache_key", "prompt_cache_retention", "cache_salt"}
_OF_OTHER_MODELS = {"parallel_tool_calls", "function_call", "reasoning_effort", "verbosity"}
HARMLESS = _TRACKING | _CACHING | _OF_OTHER_MODELS
"""Fields of OpenAI's clients and of vLLM's that change nothing here, and are ignored."""


class BadRequest(Exception):
    """What cannot be served, in one line; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


def joined(content: str | list[TextPart]) -> str:
    """Newer clients send a list of parts; only those of text can be read."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def for_template(self) -> dict[str, str]:
        """As chat templates take it, which know no developer."""
        return {"role": "system" if self.role == "developer" else self.role, "content": joined(self.content)}


class StreamOptions(BaseModel):
    include_usage: bool = False


class Prediction(BaseModel):
    """What the caller expects the text to contain: drafts may copy from it."""

    type: Literal["content"]
    content: str | list[TextPart]


class NamedSchema(BaseModel):
    name: str = ""
    definition: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(BaseModel):
    """OpenAI's way to prescribe a form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> "ResponseFormat":
        if self.type == "json_schema" and (self.json_schema is None or self.json_schema.definition is None):
            raise ValueError("type json_schema needs json_schema.schema")
        return self


class StructuredOutputs(BaseModel):
    """vLLM's way to prescribe a form: exactly one of these."""

    model_config = ConfigDict(extra="forbid")
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        if sum(each is not None for each in (self.json_, self.regex, self.choice)) != 1:
            raise ValueError("give one of json, regex and choice")
        return self


_FORM = ", and constrain the text with response_format or structured_outputs"
_INSTEAD = dict.fromkeys(
    ("guided_json", "guided_choice", "guided_regex", "guided_grammar", "grammar", "json_schema"), _FORM
)


class ChatRequest(BaseModel):
    """A field that is neither here nor in `NEUTRAL` is ignored if it is `HARMLESS`, and refused otherwise."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1, strict=True)
    top_k: int | None = Field(None, ge=-1, strict=True)
    min_p: float | None = Field(None, ge=0, le=1, strict=True)
    presence_penalty: float | None = Field(None, ge=-2, le=2, strict=True)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, strict=True)
    repetition_penalty: float | None = Field(None, gt=0, le=10, strict=True)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_ALTERNATIVES)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prediction: Prediction | None = None
    decoder: str | None = None
    decoder_options: dict[str, bool | int | float | str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_left_out(cls, given: Any) -> Any:
        for name, (neutral, instead) in NEUTRAL.items():
            value = given.get(name) if isinstance(given, dict) else None
            if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
                raise ValueError(f"{name}: {instead}")
        known = {*cls.model_fields, *NEUTRAL, *HARMLESS}
        for name, value in given.items() if isinstance(given, dict) else ():
            if name not in known and value is not None:
                raise ValueError(f"{str(name)[:60]!r} is not supported: leave it out{_INSTEAD.get(name, '')}")
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> "ChatRequest":
        if self.stream and self.logprobs:
            raise ValueError("logprobs: they come with whole answers only; leave stream out")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.structured_outputs and self.response_format and self.response_format.type != "text":
            raise ValueError("response_format and structured_outputs exclude each other")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def settings(self, defaults: "SamplingParams", decoder: "TextDecoder", seed: int) -> list["SamplingParams"]:
        """How to decode each choice; `seed` where the request has none of its own. Raises BadRequest."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        first = replace(
            defaults,
            max_new_tokens=self.max_completion_tokens or self.max_tokens or DEFAULT_MAX_TOKENS,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            seed=seed if self.seed is None else self.seed % 2**63,
            shaping=self._shaping(),
            stop=tuple(stop),
            constraint=self._form(decoder),
        )
        if self.decoder is not None or self.decoder_options:
            first = replace(first, decoder=self.decoder or defaults.decoder, options=self.decoder_options or {})
        if self.prediction is not None:
            first = replace(first, recall=defaults.recall.copy())
            first.recall.add(decoder.tokenizer.encode(joined(self.prediction.content), literal=True))
        more = (Sampler(seed=first.seed).derive("choice", number).seed for number in range(1, self.n or 1))
        return [first, *(replace(first, seed=each) for each in more)]

    def _shaping(self) -> Shaping | None:
        """None where the whole distribution is sampled. top_k -1 is vLLM's for all tokens."""
        shaping = Shaping(
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            presence=self.presence_penalty or 0.0,
            frequency=self.frequency_penalty or 0.0,
        )
        return None if shaping == Shaping() else shaping

    def _form(self, decoder: "TextDecoder") -> "Constraint[Any] | None":
        place = decoder.tokenizer, decoder.target.vocab_size
        asked, wanted = self.response_format, self.structured_outputs
        try:
            if wanted and wanted.choice:
                return choice_form(wanted.choice, *place)
            if wanted and wanted.regex is not None:
                return regex_form(wanted.regex, *place)
            if wanted:
                return json_form(_schema(wanted.json_), *place)
            if asked and asked.type != "text":
                return json_form(asked.json_schema.definition if asked.json_schema else None, *place)
        except FormError as error:
            raise BadRequest(f"{'structured_outputs' if wanted else 'response_format'}: {error}") from error
        return None


def _schema(given: dict[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    try:
        schema = json.loads(given or "")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"structured_outputs.json: no JSON ({error})") from error
    if not isinstance(schema, dict):
        raise BadRequest("structured_outputs.json: a schema is a JSON object")
    return schema


async def read_request(request: "Request", served: str) -> ChatRequest:
    """The body, checked. Raises BadRequest."""
    try:
        asked = ChatRequest.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        where, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise BadRequest(f"{where}: {what}" if where else what) from error
    if asked.model != served:
        raise BadRequest(f"there is no model {asked.model!r} here, only {served!r}", 404)
    return asked


class ChatAnswer:
    """One completion, with a text for each choice."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(
        self, done: Sequence["Completion"], scores: Sequence[Sequence["TokenScore"]] | None = None
    ) -> dict[str, Any]:
        """`scores`: of each choice's tokens, where they were asked for."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": each.text, "refusal": None},
                "finish_reason": _finish(each),
                "logprobs": {"content": list(map(_log_prob, scores[index])), "refusal": None} if scores else None,
            }
            for index, each in enumerate(done)
        ]
        return self._head | {"object": "chat.completion", "choices": choices, "usage": usage(done)}

    async def events(
        self,
        first: "TextDelta | Completion",
        rest: AsyncGenerator["TextDelta | Completion", None],
        choices: int,
        include_usage: bool,
    ) -> AsyncIterator[str]:
        """Server-sent events: the roles, the texts as they come, why they ended, and the usage where that was asked for."""
        for index in range(choices):
            yield self._event(index, {"role": "assistant", "content": ""})
        done: list[Completion] = []
        try:
            piece: TextDelta | Completion | None = first
            while piece is not None:
                if isinstance(piece, Completion):
                    done.append(piece)
                    yield self._event(_index(piece), {}, _finish(piece))
                elif piece.text:
                    yield self._event(piece.sequence, {"content": piece.text})
                piece = await anext(rest, None)
        finally:
            await rest.aclose()
        if include_usage:
            yield self._line({"choices": [], "usage": usage(done)})
        yield "data: [DONE]\n\n"

    def _event(self, index: int, delta: dict[str, str], finish: str | None = None) -> str:
        return self._line({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]})

    def _line(self, body: dict[str, Any]) -> str:
        chunk = self._head | {"object": "chat.completion.chunk"} | body
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def _index(done: "Completion") -> int:
    return done.rounds[0].sequence if done.rounds else 0


def _finish(done: "Completion") -> str:
    return "length" if done.finish == "length" else "stop"


def _log_prob(score: "TokenScore") -> dict[str, Any]:
    return _token(score) | {"top_logprobs": list(map(_token, score.alternatives))}


def _token(score: "TokenScore") -> dict[str, Any]:
    return {"token": score.text, "logprob": round(score.log_prob, 6), "bytes": list(score.spelled)}


def usage(done: Sequence["Completion"]) -> dict[str, Any]:
    """OpenAI's counts, over all choices, and how few forwards they took. The prompt counts once."""
    prompt, cached = done[0].prompt_tokens, done[0].cached_tokens
    new, totals = sum(len(each.tokens) for each in done), measure(r for each in done for r in each.rounds)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
        "target_forwards": totals.target_forwards,
        "plain_forwards": totals.plain_forwards,
        "drafted_tokens": totals.drafted_tokens,
        "accepted_tokens": totals.accepted_tokens,
        "tokens_per_forward": round(totals.tokens_per_forward, 3),
        "fewer_forwards": round(totals.fewer_forwards, 3),
    }
