"""The only way in which nodes ask the model: the prompt, the options of the call, progress events and records.

`prompt_slots` fills the slots of a prompt from what is known about a question. It needs no state, database or model, so that
training data fill the slots exactly as a conversation does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import perf_counter
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph.config import get_stream_writer

from agent.context import WITHOUT_FORM, AgentContext, AgentOptions, Call
from agent.grammar.constraint import plan_constraint, sql_constraint
from agent.observe.events import Started, Waiting, Wrote
from agent.observe.step_record import PlainTime, Step, Written, model_step
from agent.prompts.predicted_text import predicted_texts
from agent.prompts.profiles import ModelStep
from agent.prompts.slots import Slots, Try, in_order
from agent.state import Attempt
from decoding.engine.constraint import Begun, Constraint, ConstraintError
from decoding.engine.method import LookupCorpus
from decoding.engine.rounds import Round, measure
from decoding.engine.sampler import Sampler
from decoding.serving.text_decoder import ChatModel, TextDelta
from decoding.tokenizer import Tokenizer
from tools.linking.link_schema import Link, join_path, shortlist
from tools.linking.match_values import ValueMatch
from tools.linking.mentions import QuestionContext
from tools.schema import Schema

MOST_LINKS = 16
DOUBTED = "doubted"  # the kind of "error" of SQL that ran, and of which a smaller model is not sure
JOINED_LINKS = 4  # number of best links whose tables' joins the prompt shows


def prompt_slots(
    question: str,
    schema: Schema,
    dialect: str,
    options: AgentOptions,
    *,
    links: tuple[Link, ...] = (),
    values: tuple[ValueMatch, ...] = (),
    history: tuple[tuple[str, str], ...] = (),
    plan: str = "",
    tries: tuple[Try, ...] = (),
    knowledge: tuple[str, ...] = (),
    examples: tuple[tuple[str, str], ...] = (),
    evidence: str = "",
) -> Slots:
    """The slots for a step. `schema` is the whole schema; the slots hold what the prompt shows of it."""
    return Slots(
        schema=shown(schema, links, options.schema_budget) if options.hints else schema,
        dialect=dialect,
        question=question,
        evidence=evidence,
        knowledge=knowledge,
        examples=examples,
        history=history,
        values=values,
        links=links[:MOST_LINKS],
        joins=join_path(schema, list(dict.fromkeys(each.table for each in links[:JOINED_LINKS]))),
        plan=plan,
        tries=tries,
    )


def shown(schema: Schema, links: tuple[Link, ...], column_budget: int) -> Schema:
    """The whole schema if it is small, so that all questions share its KV; otherwise the tables with the best links."""
    if sum(len(table.columns) for table in schema.tables) <= column_budget:
        return schema
    return shortlist(schema, links, len(schema.tables), column_budget)


def tries_of(attempts: Iterable[Attempt]) -> tuple[Try, ...]:
    """What the prompt says about SQL that was tried. A statement that was tried twice is shown once: in the place of its last
    try, but with the outcome of its first, which says more than that it was repeated.
    """
    by_sql = {attempt["sql"]: attempt for attempt in reversed([*attempts])}
    failed = ((attempt["sql"], attempt["error"]) for attempt in reversed(by_sql.values()))
    return tuple(Try(sql, _trouble(error), error["kind"] == DOUBTED) for sql, error in failed if error)


def _trouble(error: Mapping[str, Any]) -> str:
    asked = str(error["name"] or "").casefold()
    candidates = ", ".join(name for name in error["candidates"] if name.casefold() != asked)
    message: str = error["message"]
    return message + (f"; there is: {candidates}" if candidates else "")


def call_of(
    toolbox: AgentContext,
    name: ModelStep,
    slots: Slots,
    *,
    attempt: int,
    temperature: float | None,
    bound: bool,
    orders: int,
) -> Call:
    """The call that puts a step to the model; see `agent.ask_model.ask_model` for the arguments."""
    if not (model := toolbox.local):
        return _endpoint_call(toolbox, name, slots, temperature)
    options = _call_options(toolbox, model, name, slots, attempt, temperature, bound)
    return Call(messages_of(toolbox, name, slots), options | _in_orders(toolbox, model, name, slots, orders))


def begun_with(call: Call, tokens: Sequence[int]) -> Call:
    """The call of a local model for a text that begins with these tokens, which its constraint must allow."""
    inner: Constraint[Any] = call.options["constraint"]
    return replace(call, options={**call.options, "constraint": Begun(tokens, inner)})


def _endpoint_call(toolbox: AgentContext, name: ModelStep, slots: Slots, temperature: float | None) -> Call:
    """No stop strings: its answers are not begun for it, so what would end them may stand before the SQL, or in a thought.

    The form of an answer is sent as a part of the body, since OpenAI's client raises where it reads forms itself and the
    answer was cut.
    """
    formed = toolbox.options.constrain and toolbox.forms is not None and toolbox.forms.taken
    slots = replace(slots, as_json=formed)
    form = toolbox.profile.response_format(name, slots) if formed else None
    options: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    if form:
        options["extra_body"] = {"response_format": form}
    return Call(messages_of(toolbox, name, slots), options)


def messages_of(toolbox: AgentContext, name: ModelStep, slots: Slots) -> tuple[BaseMessage, ...]:
    """The messages of a step. A local model's answer is begun for it, where a raw prompt does not end so by itself."""
    profile = toolbox.profile
    begun = toolbox.local and not profile.raw
    lead = (AIMessage(profile.lead(name).rstrip(" ")),) if begun else ()
    return (*profile.messages(name, slots), *lead)


def _call_options(
    toolbox: AgentContext,
    model: ChatModel,
    name: ModelStep,
    slots: Slots,
    attempt: int,
    temperature: float | None,
    bound: bool,
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "kind": name,
        "stop": list(toolbox.profile.stop(name)),
        "recall": _recall(toolbox, model.decoder.tokenizer, name, slots),
        "seed": Sampler(seed=toolbox.options.seed).derive(name, attempt).seed,
        "constraint": _constraint(toolbox, model, name, slots, _context(toolbox, slots) if bound else None),
    }
    options["max_new_tokens"] = toolbox.profile.max_new_tokens(name)
    # A plan's probabilities say whether it is written again; they add nothing to the confidence, which is the SQL's.
    options["likelihood"] = toolbox.options.orders > 1 if name == "plan" else toolbox.options.confidence
    if temperature is not None:
        options["temperature"] = temperature
    return options


def _in_orders(toolbox: AgentContext, model: ChatModel, name: ModelStep, slots: Slots, orders: int) -> dict[str, Any]:
    """The same prompt with the schema in other orders, as an option of the call; nothing for one order."""
    if orders == 1:
        return {}
    shown = (replace(slots, schema=in_order(slots.schema, number)) for number in range(orders))
    prompts = dict.fromkeys(model.prompt(messages_of(toolbox, name, each)) for each in shown)
    return {"other_prompts": tuple(prompts)[1:]}


def _recall(toolbox: AgentContext, tokenizer: Tokenizer, name: ModelStep, slots: Slots) -> LookupCorpus:
    """What the conversation remembers, together with what the model will probably write."""
    if not toolbox.options.predicted_outputs:
        return toolbox.recall.copy()  # the call may be repeated, when the conversation remembers its very text
    older, newer = predicted_texts(name, slots, toolbox.profile.lead(name), _end(toolbox, tokenizer, name))
    encode = partial(_encoded, tokenizer)
    return toolbox.recall.with_texts(map(encode, older), map(encode, newer))


def _end(toolbox: AgentContext, tokenizer: Tokenizer, name: ModelStep) -> str:
    """What ends an answer, as the model writes it."""
    if toolbox.profile.form(name).ending == "fence":
        return "\n```"
    return tokenizer.token(min(tokenizer.stop_ids)) if tokenizer.stop_ids else "\n"


@lru_cache(maxsize=64)  # the skeletons are needed for every plan
def _encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text))


def _constraint(
    toolbox: AgentContext, model: ChatModel, name: ModelStep, slots: Slots, context: QuestionContext | None
) -> Constraint[Any] | None:
    """The constraint that allows only a plan, or only SQL, over the schema that the prompt shows, given the question's
    `context`. None if the dialect has no grammar."""
    dialect, form = slots.dialect, toolbox.profile.form(name)
    if not (toolbox.options.constrain and dialect in ("sqlite", "duckdb")):
        return None
    decoder = model.decoder
    stop, size = decoder.tokenizer.stop_ids, decoder.target.vocab_size
    if name == "plan":
        return plan_constraint(slots.schema, decoder.tokenizer, stop, form=form, size=size, context=context)
    return sql_constraint(slots.schema, dialect, decoder.tokenizer, stop, form=form, size=size, context=context)


def _context(toolbox: AgentContext, slots: Slots) -> QuestionContext:
    turns = (part for turn in slots.history for part in turn)
    around = (slots.evidence, *slots.knowledge, *turns)
    return QuestionContext(slots.question, slots.values, around, slots.plan, toolbox.options.without_rules)


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
    toolbox: AgentContext,
    name: ModelStep,
    slots: Slots,
    *,
    samples: int = 1,
    orders: int = 1,
    batch: Sequence[Slots] = (),
    beginnings: Sequence[Sequence[int]] = (),
    aside: bool = False,
    attempt: int = 0,
    temperature: float | None = None,
    bound: bool = True,
) -> Reply:
    """Ask the model for `samples` texts of one prompt or, with `batch`, for one text of each prompt (over the same schema),
    decoded together, or with `beginnings`, for which a local model and a grammar are needed, for one text that begins with each
    of these tokens. orders: of the schema, each a prompt of a local model; the mean of the logits decides.

    Emits `Waiting` while others use the model, then `Started`, then `Wrote` as a single sample is written, unless that happens
    `aside`; remembers the tokens for later drafts. If the grammar comes to a dead end, the step starts again, bound by less
    (`_replied`), and so it does without the form of its answer where an endpoint refuses that; its record says so. `bound`:
    limit the text by what schema and question tell, not by the bare grammar only. Raises Stopped.
    """

    def calls_bound(bound: bool) -> list[Call]:
        asked = partial(call_of, toolbox, name, attempt=attempt, temperature=temperature, bound=bound, orders=orders)
        begun = [begun_with(asked(slots), tokens) for tokens in beginnings]
        return [replace(call, aside=aside) for call in begun or map(asked, (slots, *batch))]

    calls = calls_bound(bound)
    toolbox.calls[name] = calls[0]
    writer, texts = get_stream_writer(), max(samples, len(calls))
    with _reserved(toolbox, texts * calls[0].prompts, lambda ahead: writer(Waiting(name, ahead))) as model:
        reply = _answered(toolbox, model, name, calls, samples, lambda: calls_bound(False))
    toolbox.stop.check()
    return reply


def _reserved(
    toolbox: AgentContext, texts: int, waiting: Callable[[int], None]
) -> "AbstractContextManager[ChatModel | Endpoint]":
    """The model once it is this asker's turn, with seats for `texts` texts; a remote model has its own queue."""
    toolbox.stop.check()
    if isinstance(toolbox.model, ChatModel):
        return toolbox.model.reserved(texts, toolbox.stop.is_set, waiting)
    return nullcontext(Endpoint(toolbox.model))


def _answered(
    toolbox: AgentContext,
    model: "ChatModel | Endpoint",
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
        toolbox.remember([token for r in reply.rounds for token in r.text_tokens])
    plain = _race(model, calls[0], replies) if toolbox.options.race else None
    decoder = toolbox.local.settings.decoder if toolbox.local else None
    step = model_step(name, replies, decoder, wall_ms, plain or toolbox.estimate_plain, measured=plain is not None)
    log_probs, rounds = tuple(reply.log_probs for reply in replies), tuple(reply.rounds for reply in replies)
    return Reply(tuple(reply.text for reply in replies), replace(step, detail=detail), log_probs, rounds)


def _replied(
    toolbox: AgentContext,
    model: "ChatModel | Endpoint",
    name: ModelStep,
    calls: Sequence[Call],
    samples: int,
    bare: Callable[[], Sequence[Call]],
) -> tuple[Sequence[Written], Sequence[Call], str]:
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
    toolbox: AgentContext, model: "ChatModel | Endpoint", name: ModelStep, calls: Sequence[Call], samples: int
) -> Sequence[Written]:
    get_stream_writer()(Started(name))
    known = {"likelihood": True} if toolbox.local else {}
    if len(calls) > 1 or (calls[0].aside and toolbox.local):
        with ContextThreadPoolExecutor(len(calls) if known else 1) as pool:  # which share the decoder's forwards
            return list(pool.map(lambda call: model.complete(call.messages, {**call.options, **known}), calls))
    if samples == 1:
        return [_stream(toolbox, model, calls[0], name)]
    return model.samples(calls[0].messages, {**calls[0].options, **known}, samples)


def _race(model: "ChatModel | Endpoint", call: Call, replies: Sequence[Written]) -> PlainTime | None:
    """Decode the step again with plain decoding, without showing it, to measure its time. The prefill's time is taken from
    the real run: it is the same work under every decoder, and the second run finds the prompt in the prefix cache.
    """
    if not isinstance(model, ChatModel) or len(replies) > 1:
        return None
    again = model.complete(call.messages, {**call.options, "decoder": "plain", "options": {}, "likelihood": False})
    decoding_ms = measure(again.rounds[1:]).wall_ms
    return lambda rounds, prompt_tokens: measure(rounds[:1]).wall_ms + decoding_ms


def _stream(toolbox: AgentContext, model: "ChatModel | Endpoint", call: Call, name: str) -> Written:
    writer = get_stream_writer()
    for piece in model.stream(call.messages, call.options):
        toolbox.stop.check()
        if not isinstance(piece, str | TextDelta):
            return piece
        text, rounds = (piece, ()) if isinstance(piece, str) else (piece.text, (piece.round,))
        if (text or rounds) and not call.aside:  # a pass that only ends the text is one too
            writer(Wrote(name, text, rounds))
    raise RuntimeError("a text has no end")


@dataclass(frozen=True, slots=True)
class Told:
    """What an endpoint tells of a text."""

    text: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    rounds: tuple[Round, ...] = ()
    log_probs: tuple[float, ...] = ()

    @classmethod
    def of(cls, message: BaseMessage | None) -> "Told":
        """Raises TypeError for a message that no model writes."""
        if not isinstance(message, AIMessage | None):
            raise TypeError(f"the model answered with a {message.type} message")
        if not (usage := message and message.usage_metadata):
            return cls(message.text if message else "")
        cached = usage.get("input_token_details", {}).get("cache_read", 0)
        return cls(message.text, usage["input_tokens"], cached, usage["output_tokens"])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """langchain's model of an endpoint, asked as a `ChatModel` is."""

    chat: BaseChatModel

    def stream(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Iterator[str | Told]:
        whole: AIMessageChunk | None = None
        for chunk in self.chat.stream(list(messages), **options):
            if isinstance(chunk, AIMessageChunk):
                yield chunk.text
                whole = chunk if whole is None else whole + chunk
        yield Told.of(whole)

    def complete(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Told:
        return Told.of(self.chat.invoke(list(messages), **options))

    def samples(self, messages: Sequence[BaseMessage], options: Mapping[str, Any], count: int) -> list[Told]:
        """One after another, the first at temperature 0."""
        greedy = {**options, "temperature": 0.0}
        return [self.complete(messages, each) for each in (greedy, *[options] * (count - 1))]
