"""What a step's call is made of: its messages, and the options that a local model or an endpoint can follow."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from agent.grammar.constraint import plan_constraint, sql_constraint
from agent.graph.toolbox import Call, Toolbox
from agent.prompts.predicted_text import predicted_texts
from agent.prompts.profiles import ModelStep
from agent.prompts.schema_orders import in_order
from agent.prompts.slots import Slots
from decoding.engine.constraint import Begun, Constraint
from decoding.engine.recall import Recall
from decoding.engine.sampling.sampler import Sampler
from decoding.serving.chat_model import FastChatModel
from decoding.tokenizer.tokenizer import Tokenizer
from tools.linking.question_context import QuestionContext


def call_of(
    toolbox: Toolbox,
    name: ModelStep,
    slots: Slots,
    *,
    attempt: int,
    temperature: float | None,
    bound: bool,
    orders: int,
) -> Call:
    """The call that puts a step to the model; see `agent.graph.ask_model.ask_model` for the arguments."""
    if not isinstance(toolbox.model, FastChatModel):
        return _endpoint_call(toolbox, name, slots, temperature)
    options = _call_options(toolbox, toolbox.model, name, slots, attempt, temperature, bound)
    return Call(messages_of(toolbox, name, slots), options | _in_orders(toolbox, toolbox.model, name, slots, orders))


def begun_with(call: Call, tokens: Sequence[int]) -> Call:
    """The call of a local model for a text that begins with these tokens, which its constraint must allow."""
    inner: Constraint[Any] = call.options["constraint"]
    return replace(call, options={**call.options, "constraint": Begun(tokens, inner)})


def _endpoint_call(toolbox: Toolbox, name: ModelStep, slots: Slots, temperature: float | None) -> Call:
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


def messages_of(toolbox: Toolbox, name: ModelStep, slots: Slots) -> tuple[BaseMessage, ...]:
    """The messages of a step. A local model's answer is begun for it, where a raw prompt does not end so by itself."""
    profile = toolbox.profile
    begun = isinstance(toolbox.model, FastChatModel) and not profile.raw
    lead = (AIMessage(profile.lead(name).rstrip(" ")),) if begun else ()
    return (*profile.messages(name, slots), *lead)


def _call_options(
    toolbox: Toolbox,
    model: FastChatModel,
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


def _in_orders(toolbox: Toolbox, model: FastChatModel, name: ModelStep, slots: Slots, orders: int) -> dict[str, Any]:
    """The same prompt with the schema in other orders, as an option of the call; nothing for one order."""
    if orders == 1:
        return {}
    shown = (replace(slots, schema=in_order(slots.schema, number)) for number in range(orders))
    prompts = dict.fromkeys(model.prompt(messages_of(toolbox, name, each)) for each in shown)
    return {"other_prompts": tuple(prompts)[1:]}


def _recall(toolbox: Toolbox, tokenizer: Tokenizer, name: ModelStep, slots: Slots) -> Recall:
    """What the conversation remembers, together with what the model will probably write."""
    if not toolbox.options.foretell:
        return toolbox.recall.copy()  # the call may be repeated, when the conversation remembers its very text
    older, newer = predicted_texts(name, slots, toolbox.profile.lead(name), _end(toolbox, tokenizer, name))
    encode = partial(_encoded, tokenizer)
    return toolbox.recall.beside(map(encode, older), map(encode, newer))


def _end(toolbox: Toolbox, tokenizer: Tokenizer, name: ModelStep) -> str:
    """What ends an answer, as the model writes it."""
    if toolbox.profile.form(name).ending == "fence":
        return "\n```"
    return tokenizer.token(min(tokenizer.stop_ids)) if tokenizer.stop_ids else "\n"


@lru_cache(maxsize=64)  # the skeletons are needed for every plan
def _encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text))


def _constraint(
    toolbox: Toolbox, model: FastChatModel, name: ModelStep, slots: Slots, context: QuestionContext | None
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


def _context(toolbox: Toolbox, slots: Slots) -> QuestionContext:
    turns = (part for turn in slots.history for part in turn)
    around = (slots.evidence, *slots.knowledge, *turns)
    return QuestionContext(slots.question, slots.values, around, slots.plan, toolbox.options.without_rules)
