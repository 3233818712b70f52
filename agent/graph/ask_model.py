"""The only way in which nodes ask the model: prompt, call, progress events, record."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.config import get_stream_writer

from agent.graph.call_options import begun_with, call_of
from agent.graph.toolbox import WITHOUT_FORM, Call, Toolbox
from agent.observe.events import Started, Waiting, Wrote
from agent.observe.step_record import PlainTime, Step, model_step
from agent.prompts.profiles import ModelStep
from agent.prompts.slots import Slots
from decoding.engine.constraint import ConstraintError
from decoding.engine.records.metrics import measure
from decoding.engine.records.rounds import Round
from decoding.serving.chat_model import FastChatModel, log_probs_of, rounds_of


@dataclass(frozen=True, slots=True)
class Reply:
    texts: tuple[str, ...]
    step: Step
    log_probs: tuple[
        tuple[float, ...], ...
    ]  # of each text's tokens that no grammar forced; empty if they are not known
    rounds: tuple[tuple[Round, ...], ...]  # of each text; empty if they are not known

    @property
    def log_likelihoods(self) -> tuple[float, ...]:
        """Of each text; 0 if it is not known."""
        return tuple(map(sum, self.log_probs))


def ask_model(
    toolbox: Toolbox,
    name: ModelStep,
    slots: Slots,
    *,
    samples: int = 1,
    orders: int = 1,
    beside: Sequence[Slots] = (),
    beginnings: Sequence[Sequence[int]] = (),
    aside: bool = False,
    attempt: int = 0,
    temperature: float | None = None,
    bound: bool = True,
) -> Reply:
    """Ask the model for `samples` texts of one prompt or, with `beside`, for one text of each prompt (over the same schema),
    decoded together, or with `beginnings`, for which a local model and a grammar are needed, for one text that begins with each
    of these tokens. orders: of the schema, behind which a local model predicts; their mean decides.

    Emits `Waiting` while others use the model, then `Started`, then `Wrote` as a single sample is written, unless that happens
    `aside`; remembers the tokens for later drafts. If the grammar comes to a dead end, the step starts again, bound by less
    (`_replied`), and so it does without the form of its answer where an endpoint refuses that; its record says so. `bound`:
    limit the text by what schema and question tell, not by the bare grammar only. Raises Stopped.
    """

    def calls_bound(bound: bool) -> list[Call]:
        asked = partial(call_of, toolbox, name, attempt=attempt, temperature=temperature, bound=bound, orders=orders)
        begun = [begun_with(asked(slots), tokens) for tokens in beginnings]
        return [replace(call, aside=aside) for call in begun or map(asked, (slots, *beside))]

    calls = calls_bound(bound)
    toolbox.calls[name] = calls[0]
    writer, texts = get_stream_writer(), max(samples, len(calls))
    with _reserved(toolbox, texts * calls[0].prompts, lambda ahead: writer(Waiting(name, ahead))) as model:
        reply = _answered(toolbox, model, name, calls, samples, lambda: calls_bound(False))
    toolbox.stop.check()
    return reply


def _reserved(toolbox: Toolbox, texts: int, waiting: Callable[[int], None]) -> AbstractContextManager[BaseChatModel]:
    """The model once it is this asker's turn, with seats for `texts` texts; a remote model has its own queue."""
    toolbox.stop.check()
    if isinstance(toolbox.model, FastChatModel):
        return toolbox.model.reserved(texts, toolbox.stop.is_set, waiting)
    return nullcontext(toolbox.model)


def _answered(
    toolbox: Toolbox,
    model: BaseChatModel,
    name: ModelStep,
    calls: Sequence[Call],
    samples: int,
    bare: Callable[[], Sequence[Call]],
) -> Reply:
    start = perf_counter()
    try:
        replies, calls, detail = _replied(toolbox, model, name, calls, samples, bare)
    except Exception as error:
        if not (toolbox.forms and toolbox.forms.is_refusal(error, calls)):
            raise
        with toolbox.forms.given_up(error):
            calls = bare()
            replies, detail = _replies(toolbox, model, name, calls, samples), WITHOUT_FORM
    wall_ms = 1e3 * (perf_counter() - start)
    for reply in replies:
        toolbox.remember([token for r in rounds_of(reply) for token in r.text_tokens])
    plain = _race(model, calls[0], replies) if toolbox.options.race else None
    step = model_step(name, replies, wall_ms, plain or toolbox.estimate_plain, measured=plain is not None)
    log_probs = tuple(map(log_probs_of, replies))
    rounds = tuple(map(rounds_of, replies))
    return Reply(tuple(reply.text for reply in replies), replace(step, detail=detail), log_probs, rounds)


def _replied(
    toolbox: Toolbox,
    model: BaseChatModel,
    name: ModelStep,
    calls: Sequence[Call],
    samples: int,
    bare: Callable[[], Sequence[Call]],
) -> tuple[list[AIMessage], Sequence[Call], str]:
    """The replies, the calls that gave them, and what was given up for them: at a dead end first what schema and question
    tell the grammar, then the grammar.
    """
    ways: tuple[tuple[Callable[[], Sequence[Call]], str], ...] = (
        (lambda: calls, ""),
        (bare, "by the bare grammar, as the bound one came to a dead end"),
    )
    for these, detail in ways:
        try:
            held = these()
            return _replies(toolbox, model, name, held, samples), held, detail
        except ConstraintError:
            continue
    free = [replace(call, options={**call.options, "constraint": None}) for call in calls]
    return _replies(toolbox, model, name, free, samples), free, "without the grammar, which came to a dead end"


def _replies(
    toolbox: Toolbox, model: BaseChatModel, name: ModelStep, calls: Sequence[Call], samples: int
) -> list[AIMessage]:
    get_stream_writer()(Started(name))
    if len(calls) > 1 or calls[0].aside:
        return _each(model, calls)
    if samples == 1:
        return [_stream(toolbox, model, calls[0], name)]
    return _samples(model, calls[0], samples)


def _race(model: BaseChatModel, call: Call, replies: list[AIMessage]) -> PlainTime | None:
    """Decode the step again with plain decoding, without showing it, to measure its time. The prefill's time is taken from
    the real run: it is the same work under every decoder, and the second run finds the prompt in the prefix cache.
    """
    if not isinstance(model, FastChatModel) or len(replies) > 1:
        return None
    again = model.invoke(
        list(call.messages), **{**call.options, "decoder": "plain", "options": {}, "likelihood": False}
    )
    decoding_ms = measure(rounds_of(again)[1:]).wall_ms
    return lambda rounds, prompt_tokens: measure(rounds[:1]).wall_ms + decoding_ms


def _stream(toolbox: Toolbox, model: BaseChatModel, call: Call, name: str) -> AIMessage:
    writer = get_stream_writer()
    whole: AIMessageChunk | None = None
    for chunk in model.stream(list(call.messages), **call.options):
        toolbox.stop.check()
        if not isinstance(chunk, AIMessageChunk):
            continue
        if chunk.text:
            writer(Wrote(name, chunk.text, rounds_of(chunk)))
        whole = chunk if whole is None else whole + chunk
    if whole is None:
        return AIMessage("")
    return AIMessage(whole.text, usage_metadata=whole.usage_metadata, response_metadata=whole.response_metadata)


def _samples(model: BaseChatModel, call: Call, count: int) -> list[AIMessage]:
    """Several samples, the first greedy; in one batch if the model can do that, otherwise one after another."""
    messages = list(call.messages)
    if not isinstance(model, FastChatModel):
        greedy = {**call.options, "temperature": 0.0}
        return [_message(model.invoke(messages, **options)) for options in (greedy, *[call.options] * (count - 1))]
    result = model.generate([messages], n=count, **{**call.options, "likelihood": True})
    return [_message(generation.message) for generation in result.generations[0]]  # type: ignore[union-attr]


def _each(model: BaseChatModel, calls: Sequence[Call]) -> list[AIMessage]:
    """One text of each call, in threads that share the decoder's forwards."""
    fast = isinstance(model, FastChatModel)
    more: dict[str, Any] = {"likelihood": True} if fast else {}

    def invoke(call: Call) -> AIMessage:
        return _message(model.invoke(list(call.messages), **{**call.options, **more}))

    with ContextThreadPoolExecutor(len(calls) if fast else 1) as pool:
        return list(pool.map(invoke, calls))


def _message(message: BaseMessage) -> AIMessage:
    if not isinstance(message, AIMessage):
        raise TypeError(f"the model answered with a {message.type} message")
    return message
