"""The nodes in which the model writes: a plan, then SQL, then SQL again after an error."""

from dataclasses import asdict
from functools import partial
from typing import Any, Literal

from langgraph.types import Command

from agent.ask_model import Reply, ask_model
from agent.candidates import (
    Tools,
    asked,
    begin,
    check_sql,
    choose_reading,
    may_try_again,
    recorded,
    same_sql,
    since,
    slots,
    translated,
    values_of,
    written,
)
from agent.context import AgentContext
from agent.nodes.assess import is_doubtful, rewritten
from agent.observe.events import Wrote
from agent.observe.step_record import tool_step
from agent.presentation.sentence import REPEATED
from agent.state import Attempt, DrawnPlan, State
from tools.result import QueryError

REPEATED_TEMPERATURE = 0.7  # of the third attempt and later ones
_REPEATED = asdict(QueryError("other", REPEATED))


def plan(state: State, runtime: Tools) -> Command[Literal["generate"]]:
    """Let the model name what it will use and sketch the SQL, once for each reading. A doubtful plan is written again, behind
    several orders of the schema.
    """
    toolbox, readings = runtime.context, state["readings"]
    first, *others = (slots(state | {"reading": reading}, toolbox) for reading in readings)
    reply = ask_model(toolbox, "plan", first, batch=others)
    update = recorded(state, runtime, reply.step) | _first(state, toolbox, reply)
    if not others and is_doubtful(toolbox, first, reply):
        again = toolbox.optional("rewrite", partial(rewritten, toolbox, first), None)
        update |= recorded(state | update, runtime, again.step) if again else {}
        reply = again or reply
    texts = map(toolbox.profile.read_plan, reply.texts)
    drawn = zip(texts, reply.log_likelihoods, readings, strict=True)
    plans = [DrawnPlan(text=text, drawn=1, log_likelihood=known, reading=reading) for text, known, reading in drawn]
    return Command(update={"plan": plans[0]["text"], "plans": plans} | update, goto="generate")


def _first(state: State, toolbox: AgentContext, reply: Reply) -> dict[str, Any]:
    """The update of the state that keeps the first plan of each reading and its log-probabilities."""
    plans = [toolbox.profile.read_plan(text) for text in reply.texts]
    known = dict(zip(plans, map(list, reply.log_probs), strict=True))
    return {
        "first_plans": dict(zip(state["readings"], plans, strict=False)), "log_probs": state["log_probs"] | known
    }  # fmt: skip


def generate(state: State, runtime: Tools) -> Command[Literal["check"]]:
    """Let the model write SQL: once for each plan. Of the SQL of several readings that is taken which covers the question."""
    toolbox, plans = runtime.context, state["plans"]
    first, *others = (slots(state | {"plan": each["text"], "reading": each["reading"]}, toolbox) for each in plans)
    reply = ask_model(toolbox, "generate", first, batch=others)
    if others:
        return _read(state, runtime, reply)
    sql = toolbox.profile.read_sql(reply.texts[0])
    update = {"candidate": sql} | written(state, toolbox, reply) | recorded(state, runtime, reply.step)
    return Command(update=update, goto="check")


def _read(state: State, runtime: Tools, reply: Reply) -> Command[Literal["check"]]:
    """Choose the reading whose SQL covers the question better."""
    start, toolbox, plans = begin(runtime, "choose"), runtime.context, state["plans"]
    candidates = [toolbox.profile.read_sql(text) for text in reply.texts]

    def better() -> int:
        checked = [
            check_sql(toolbox, translated(toolbox, sql, state), values_of(state), asked(state)) for sql in candidates
        ]
        return choose_reading(state, toolbox.database.schema(), checked)

    chosen = toolbox.optional("choose", better, 0)
    runtime.stream_writer(Wrote("choose", reply.texts[chosen], reply.rounds[chosen]))
    reading = plans[chosen]["reading"]
    choice = tool_step("choose", since(start), "by itself" if reading == "standalone" else "as a follow-up")
    update = {"candidate": candidates[chosen], "plan": plans[chosen]["text"], "reading": reading}
    update |= written(state, toolbox, reply)
    return Command(update=update | recorded(state, runtime, reply.step, choice), goto="check")


def refine(state: State, runtime: Tools) -> Command[Literal["check", "refine", "doubt"]]:
    """Show the model what went wrong and let it correct the SQL. SQL that was tried before is not tried again."""
    toolbox, attempts = runtime.context, state["attempts"]
    temperature = REPEATED_TEMPERATURE if len(attempts) > 1 else None  # greedy decoding would repeat itself
    lost = (attempts[-1]["error"] or {}).get("kind") == "syntax"  # facts may have kept the SQL from ending
    now = slots(state, toolbox)
    reply = ask_model(toolbox, "refine", now, attempt=len(attempts), temperature=temperature, bound=not lost)
    sql = toolbox.profile.read_sql(reply.texts[0])
    to_run = translated(toolbox, sql, state)
    if not any(same_sql(to_run, attempt["sql"], toolbox.database.dialect) for attempt in attempts):
        update = {"candidate": sql} | written(state, toolbox, reply) | recorded(state, runtime, reply.step)
        return Command(update=update, goto="check")
    again = may_try_again(toolbox, attempts) and attempts[-1]["error"] != _REPEATED
    attempts = [*attempts, Attempt(sql=to_run, repaired=False, error=_REPEATED, row_count=None)]
    update = {"attempts": attempts} | recorded(state, runtime, reply.step)
    return Command(update=update, goto="refine" if again and may_try_again(toolbox, attempts) else "doubt")
