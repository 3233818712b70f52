"""The only way in which nodes ask the model: prompt, call, progress events, record."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.config import get_stream_writer

from agent.grammar.constraint import plan_constraint, sql_constraint
from agent.grammar.scope.said import Said
from agent.graph.toolbox import Call, Toolbox
from agent.observe.events import Started, Waiting, Wrote
from agent.observe.step_record import PlainTime, Step, model_step
from agent.prompts.predicted_text import predicted_texts
from agent.prompts.profiles import ModelStep
from agent.prompts.schema_orders import in_order
from agent.prompts.slots import Slots
from decoding.engine.constraint import Constraint, ConstraintError
from decoding.engine.recall import Recall
from decoding.engine.records.metrics import measure
from decoding.engine.records.rounds import Round
from decoding.engine.sampling.sampler import Sampler
from decoding.serving.chat_model import FastChatModel, log_probs_of, rounds_of
from decoding.tokenizer.tokenizer import Tokenizer


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
    attempt: int = 0,
    temperature: float | None = None,
    bound: bool = True,
) -> Reply:
    """Ask the model for `samples` texts of one prompt or, with `beside`, for one text of each prompt (over the same schema),
    decoded together. orders: of the schema, behind which a local model predicts; their mean decides.

    Emits `Waiting` while others use the model, then `Started`, then `Wrote` as a single sample is written; remembers the
    tokens for later drafts. If the grammar comes to a dead end, the step starts again, bound by less (`_replied`), and
    its record says so. `bound`: limit the text by what schema and question tell, not by the bare grammar only. Raises
    Stopped.
    """

    def calls_bound(bound: bool) -> list[Call]:
        return [
            Call(
                messages_of(toolbox, name, each),
                _call_options(toolbox, name, each, attempt, temperature, bound)
                | _in_orders(toolbox, name, each, orders),
            )
            for each in (slots, *beside)
        ]

    calls = calls_bound(bound)
    toolbox.calls[name] = calls[0]
    writer, texts = get_stream_writer(), max(samples, len(calls))
    with _reserved(toolbox, texts * calls[0].prompts, lambda ahead: writer(Waiting(name, ahead))) as model:
        reply = _answered(toolbox, model, name, calls, samples, lambda: calls_bound(False))
    toolbox.stop.check()
    return reply


def messages_of(toolbox: Toolbox, name: ModelStep, slots: Slots) -> tuple[BaseMessage, ...]:
    """The messages of a step. A local model's answer is begun for it, where a raw prompt does not end so by itself."""
    profile = toolbox.profile
    begun = isinstance(toolbox.model, FastChatModel) and not profile.raw
    lead = (AIMessage(profile.lead(name).rstrip(" ")),) if begun else ()
    return (*profile.messages(name, slots), *lead)


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
    replies, calls, detail = _replied(toolbox, model, name, calls, samples, bare)
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
    if len(calls) > 1:
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


def _call_options(
    toolbox: Toolbox, name: ModelStep, slots: Slots, attempt: int, temperature: float | None, bound: bool
) -> dict[str, Any]:
    if not isinstance(toolbox.model, FastChatModel):
        # No stop strings: its answers are not begun for it, so what would end them may stand before the SQL, or in a thought.
        return {} if temperature is None else {"temperature": temperature}
    options: dict[str, Any] = {
        "stop": list(toolbox.profile.stop(name)),
        "recall": _recall(toolbox, toolbox.model.decoder.tokenizer, name, slots),
        "seed": Sampler(seed=toolbox.options.seed).derive(name, attempt).seed,
        "constraint": _constraint(
            toolbox, toolbox.model, name, slots, _said(slots, toolbox.options.mends) if bound else None
        ),
    }
    options["max_new_tokens"] = toolbox.profile.max_new_tokens(name)
    # A plan's probabilities say whether it is written again; they add nothing to the confidence, which is the SQL's.
    options["likelihood"] = toolbox.options.orders > 1 if name == "plan" else toolbox.options.confidence
    if temperature is not None:
        options["temperature"] = temperature
    return options


def _in_orders(toolbox: Toolbox, name: ModelStep, slots: Slots, orders: int) -> dict[str, Any]:
    """The same prompt with the schema in other orders, as an option of the call; nothing for one order or another's model."""
    model = toolbox.model
    if orders == 1 or not isinstance(model, FastChatModel):
        return {}
    shown = (replace(slots, schema=in_order(slots.schema, number)) for number in range(orders))
    prompts = dict.fromkeys(model.prompt(messages_of(toolbox, name, each)) for each in shown)
    return {"other_prompts": tuple(prompts)[1:]}


def _recall(toolbox: Toolbox, tokenizer: Tokenizer, name: ModelStep, slots: Slots) -> Recall:
    """What the conversation remembers, together with what the model will probably write."""
    if not toolbox.options.foretell:
        return toolbox.recall.copy()  # the call may be repeated, when the conversation remembers its very text
    older, newer = predicted_texts(name, slots, toolbox.profile.lead(name))
    encode = partial(_encoded, tokenizer)
    return toolbox.recall.beside(map(encode, older), map(encode, newer))


@lru_cache(maxsize=64)  # the skeletons are needed for every plan
def _encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text))


def _constraint(
    toolbox: Toolbox, model: FastChatModel, name: ModelStep, slots: Slots, said: Said | None
) -> Constraint[Any] | None:
    """The constraint that allows only a plan, or only SQL, over the schema that the prompt shows, given what was `said`. None
    if the dialect has no grammar."""
    dialect, form = toolbox.database.dialect, toolbox.profile.form(name)
    if not (toolbox.options.constrain and dialect in ("sqlite", "duckdb")):
        return None
    decoder = model.decoder
    stop, size = decoder.tokenizer.stop_ids, decoder.target.vocab_size
    if name == "plan":
        return plan_constraint(slots.schema, decoder.tokenizer, stop, form=form, size=size, said=said)
    return sql_constraint(slots.schema, dialect, decoder.tokenizer, stop, form=form, size=size, said=said)


def _said(slots: Slots, mends: Sequence[str]) -> Said:
    turns = (part for turn in slots.history for part in turn)
    around = (slots.evidence, *slots.knowledge, *turns)
    return Said(
        slots.question,
        slots.values,
        around,
        elsewhere="columns" in mends,
        like_columns="members" in mends,
        no_amounts="keys" in mends,
        dated="dates" in mends,
        named="named" in mends,
        phrased="phrased" in mends,
        counted="counted" in mends,
        roles="roles" in mends,
        ordered="ordered" in mends,
        plan=slots.plan,
    )


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
