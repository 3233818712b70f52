"""The nodes in which a model writes: a plan, then SQL, then SQL again after an error; and SQL by a larger model."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from langgraph.types import Command

from agent.ask_model import DOUBTED, Reply, ask_model
from agent.candidates import (
    Tools,
    asked,
    begin,
    check_sql,
    choose_reading,
    may_try_again,
    preview_of,
    proposals_of,
    recorded,
    same_sql,
    since,
    slots,
    values_of,
)
from agent.context import AgentContext
from agent.nodes.assess import is_doubtful, rewritten, superseded, unless_sure
from agent.observe.audit import Escalation, run_sql
from agent.observe.events import Wrote
from agent.observe.step_record import Step, tool_step
from agent.presentation.sentence import REPEATED
from agent.state import Attempt, DrawnPlan, State, Written
from tools.result import QueryError, Result

REPEATED_TEMPERATURE = 0.7  # of the third attempt and later ones
_REPEATED = asdict(QueryError("other", REPEATED))


def plan(state: State, runtime: Tools) -> Command[Literal["generate"]]:
    """Let the model name what it will use and sketch the SQL, once for each reading. A doubtful plan is written again, behind
    several orders of the schema.
    """
    toolbox, readings = runtime.context, state["readings"]
    first, *others = (slots(state | {"reading": reading}, toolbox) for reading in readings)
    reply = ask_model(toolbox, "plan", first, batch=others)
    texts = [toolbox.profile.read_plan(text) for text in reply.texts]
    written = (Written(text=text, log_probs=[*known]) for text, known in zip(texts, reply.log_probs, strict=True))
    update = recorded(state, runtime, reply.step) | {"first_plans": dict(zip(readings, written, strict=False))}
    if not others and is_doubtful(toolbox, first, reply):
        again = toolbox.optional("rewrite", partial(rewritten, toolbox, first), None)
        update |= recorded(state | update, runtime, again.step) if again else {}
        if again:
            reply, texts = again, [toolbox.profile.read_plan(text) for text in again.texts]
    drawn = zip(texts, reply.log_likelihoods, readings, strict=True)
    plans = [DrawnPlan(text=text, drawn=1, log_likelihood=known, reading=reading) for text, known, reading in drawn]
    return Command(update={"plan": plans[0]["text"], "plans": plans} | update, goto="generate")


def generate(state: State, runtime: Tools) -> Command[Literal["check"]]:
    """Let the model write SQL: once for each plan. Of the SQL of several readings that is taken which covers the question."""
    toolbox, plans = runtime.context, state["plans"]
    first, *others = (slots(state | {"plan": each["text"], "reading": each["reading"]}, toolbox) for each in plans)
    reply = ask_model(toolbox, "generate", first, batch=others)
    if others:
        return _read(state, runtime, reply)
    update = {"candidate": proposals_of(state, toolbox, reply)[0]} | recorded(state, runtime, reply.step)
    return Command(update=update, goto="check")


def _read(state: State, runtime: Tools, reply: Reply) -> Command[Literal["check"]]:
    """Choose the reading whose SQL covers the question better."""
    start, toolbox, plans = begin(runtime, "choose"), runtime.context, state["plans"]
    proposals = proposals_of(state, toolbox, reply)

    def better() -> int:
        checked = [check_sql(toolbox, each["sql"], values_of(state), asked(state)) for each in proposals]
        return choose_reading(state, toolbox.database.schema(), checked)

    chosen = toolbox.optional("choose", better, 0)
    runtime.stream_writer(Wrote("choose", reply.texts[chosen], reply.rounds[chosen]))
    reading = plans[chosen]["reading"]
    choice = tool_step("choose", since(start), "by itself" if reading == "standalone" else "as a follow-up")
    candidate = proposals_of(state | {"reading": reading}, toolbox, reply)[chosen]
    update = {"candidate": candidate, "plan": plans[chosen]["text"], "reading": reading}
    return Command(update=update | recorded(state, runtime, reply.step, choice), goto="check")


def refine(state: State, runtime: Tools) -> Command[Literal["check", "refine", "doubt"]]:
    """Show the model what went wrong and let it correct the SQL. SQL that was tried before is not tried again."""
    toolbox, attempts = runtime.context, state["attempts"]
    temperature = REPEATED_TEMPERATURE if len(attempts) > 1 else None  # greedy decoding would repeat itself
    lost = (attempts[-1]["error"] or {}).get("kind") == "syntax"  # facts may have kept the SQL from ending
    now = slots(state, toolbox)
    reply = ask_model(toolbox, "refine", now, attempt=len(attempts), temperature=temperature, bound=not lost)
    [candidate] = proposals_of(state, toolbox, reply)
    if not any(same_sql(candidate["sql"], attempt["sql"], toolbox.database.dialect) for attempt in attempts):
        update = {"candidate": candidate} | recorded(state, runtime, reply.step)
        return Command(update=update, goto="check")
    again = may_try_again(toolbox, attempts) and attempts[-1]["error"] != _REPEATED
    attempts = [*attempts, Attempt(sql=candidate["sql"], repaired=False, error=_REPEATED, row_count=None)]
    update = {"attempts": attempts} | recorded(state, runtime, reply.step)
    return Command(update=update, goto="refine" if again and may_try_again(toolbox, attempts) else "doubt")


def escalate(state: State, runtime: Tools) -> Command[Literal["answer"]]:
    """Let the larger model answer what the agent's own failed at or is not sure of. Where that gives no rows either, the
    former answer stays as it is, and a sentence says why.
    """
    start, toolbox, steps = begin(runtime, "escalate"), runtime.context, list[Step]()
    larger = toolbox.larger
    assert larger, "this node comes after a question that there is a larger model for"
    update = toolbox.optional("escalate", partial(_by_larger, state, toolbox, toolbox.with_larger(larger), steps), None)
    read, written_tokens = (sum(getattr(step, name) for step in steps) for name in ("prompt_tokens", "new_tokens"))
    cost = Escalation(larger.name, update is not None, read, written_tokens, since(start))
    if toolbox.trail:
        toolbox.trail.escalated(toolbox.database.name, cost)
    if update is None:
        own = {"judgement": state["judgement"], "sql": state["sql"]}
        update = {} if state["preview"] is None else unless_sure(own, toolbox)
    named = (replace(step, detail=f"{larger.name}: {step.detail}".removesuffix(": ")) for step in steps)
    return Command(update=update | {"escalated": asdict(cost)} | recorded(state, runtime, *named), goto="answer")


def _by_larger(state: State, toolbox: AgentContext, up: AgentContext, steps: list[Step]) -> dict[str, Any] | None:
    """The update with the rows of the larger model's SQL; None if none of it ran, which the answer then says. `up`: the
    toolbox with that model; `steps` gets what asking it cost.
    """
    before, tried = _before(state), list[Attempt]()
    while may_try_again(up, tried):
        now = slots(State(**{**state, "attempts": [*before, *tried]}), up)
        reply = ask_model(up, "refine", now, aside=True, attempt=len(tried))
        steps.append(reply.step)
        [candidate] = proposals_of(state, up, reply)
        sql, outcome = _tried(up, candidate["sql"], state)
        error = asdict(outcome) if isinstance(outcome, QueryError) else None
        rows = len(outcome.rows) if isinstance(outcome, Result) else None
        tried.append(Attempt(sql=sql, repaired=False, error=error, row_count=rows))
        if isinstance(outcome, Result):
            judgement = superseded(state, toolbox, sql, outcome)
            toolbox.keep(outcome)
            preview = preview_of(outcome, toolbox.options.preview_rows)
            found = {"sql": sql, "candidate": candidate, "preview": preview, "judgement": judgement}
            return found | {"attempts": [*state["attempts"], *tried]}
    trouble = (tried[-1]["error"] or {}).get("message", "")
    toolbox.left_out.append(f"The larger model's SQL did not run either: {trouble}.")
    return None


def _before(state: State) -> Sequence[Attempt]:
    """What the larger model is shown of the tries before it: those that failed, and the SQL that ran and is not sure enough."""
    failed = [attempt for attempt in state["attempts"] if attempt["error"]]
    if state["preview"] is None:
        return failed
    rows, judgement = state["preview"]["row_count"], state["judgement"] or {}
    said = [
        f"it gave {rows} row{'s' * (rows != 1)}, and a small model wrote it that is not sure.",
        *judgement.get("doubts", ()),
    ]
    doubted = {"kind": DOUBTED, "message": " ".join(said), "name": None, "candidates": ()}
    return [*failed, Attempt(sql=state["sql"], repaired=False, error=doubted, row_count=rows)]


def _tried(toolbox: AgentContext, sql: str, state: State) -> tuple[str, Result | QueryError]:
    """The SQL as it was checked and repaired, and what it gave."""
    fixed, error = check_sql(toolbox, sql, values_of(state), asked(state))
    if error is None:
        return fixed, run_sql(toolbox.trail, toolbox.database, fixed, toolbox.limits)
    if toolbox.trail:
        toolbox.trail.turned_down(toolbox.database, sql, error)
    return sql, error
