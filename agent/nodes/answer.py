"""The nodes that check SQL, run it and make an answer of what it returns. They need no model."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from langgraph.types import Command

from agent.candidates import (
    Tools,
    applied_definitions,
    asked,
    begin,
    check_sql,
    may_try_again,
    preview_of,
    recorded,
    repeats_a_turn,
    same_sql,
    since,
    spellings_told,
    turn_of,
    values_of,
)
from agent.context import AgentContext
from agent.nodes.link import without_unmeant
from agent.observe.audit import run_sql
from agent.observe.step_record import tool_step
from agent.presentation.checks import pooled, result_doubts
from agent.presentation.headings import in_taught_words
from agent.presentation.present import plainly, present
from agent.presentation.sentence import sentence
from agent.presentation.shown import Shown
from agent.state import Attempt, Proposal, State
from tools.linking.mentions import SURE
from tools.linking.taught import Definition
from tools.result import QueryError, Result
from tools.review import Run, repeated_by_joins

QUICK_MS = 2000


def check(state: State, runtime: Tools) -> Command[Literal["execute", "refine", "doubt", "plan", "vary"]]:
    """Guard and bind the SQL without running it; repair it if a deterministic rule can, unless a person wrote or chose it. A
    follow-up that got the SQL of an earlier question is planned again as a self-contained question, SQL that compares with a
    value which the question hardly means without that value, and SQL that the asker has refused is varied.
    """
    start, toolbox, candidate = begin(runtime, "check"), runtime.context, state["candidate"]
    sql = candidate["sql"]
    by_a_person = bool(state["example"] or state["chosen"]) and not state["attempts"]
    fixed, error = check_sql(toolbox, sql, values_of(state), None if by_a_person else asked(state))
    if error is None:
        detail = "repaired" if fixed != sql else "fine"
        if not by_a_person and repeats_a_turn(state, fixed, toolbox.database.dialect):
            step = tool_step("check", since(start), "the SQL of an earlier question")
            again = {"readings": ["standalone"], "reading": "standalone", "plan": ""}
            return Command(update=again | recorded(state, runtime, step), goto="plan")
        if again := without_unmeant(state, toolbox, fixed):
            step = tool_step("check", since(start), "a value that was hardly meant")
            return Command(update=again | recorded(state, runtime, step), goto="plan")
        if any(same_sql(fixed, refused, toolbox.database.dialect) for refused in state["refused"]):
            step = tool_step("check", since(start), "the SQL that was refused")
            return Command(update=recorded(state, runtime, step), goto="vary")
        ready = Proposal(sql=fixed, written=candidate["written"], repaired=fixed != sql)
        update = {"candidate": ready} | recorded(state, runtime, tool_step("check", since(start), detail))
        return Command(update=update, goto="execute")
    if toolbox.trail:
        toolbox.trail.turned_down(toolbox.database, sql, error)
    attempts = [*state["attempts"], Attempt(sql=sql, repaired=False, error=asdict(error), row_count=None)]
    update = {"attempts": attempts} | recorded(state, runtime, tool_step("check", since(start), error.message))
    return Command(update=update, goto="refine" if may_try_again(toolbox, attempts) else "doubt")


def execute(state: State, runtime: Tools) -> Command[Literal["doubt", "refine"]]:
    """Run the SQL read-only, with a deadline, a memory limit and a row cap."""
    toolbox, sql = runtime.context, state["candidate"]["sql"]
    start = begin(runtime, "execute")
    result = run_sql(toolbox.trail, toolbox.database, sql, toolbox.limits)
    wall_ms = since(start)
    failed = isinstance(result, QueryError)
    attempt = Attempt(
        sql=sql,
        repaired=state["candidate"]["repaired"],
        error=asdict(result) if isinstance(result, QueryError) else None,
        row_count=None if isinstance(result, QueryError) else len(result.rows),
    )
    update: dict[str, Any] = {"attempts": [*state["attempts"], attempt]}
    update |= recorded(state, runtime, tool_step("execute", wall_ms, _outcome(result)))
    if isinstance(result, Result) and (result.rows or state["preview"] is None):
        update |= {"sql": sql, "preview": preview_of(result, toolbox.options.preview_rows)}
        toolbox.keep(result)
    again = failed and may_try_again(toolbox, update["attempts"])
    return Command(update=update, goto="refine" if again else "doubt")


def _outcome(result: Result | QueryError) -> str:
    if isinstance(result, QueryError):
        return result.message
    ties = f", ties settled by {', '.join(result.tie_keys)}" if result.tie_keys else ""
    return f"{len(result.rows)} rows" + (", cut off" if result.truncated else "") + ties


def answer(state: State, runtime: Tools) -> dict[str, Any]:
    """Prepare what is shown, write one sentence from it, and remember the turn for follow-up questions."""
    start, toolbox = begin(runtime, "answer"), runtime.context
    if state["unsure"]:
        return {"answer": state["unsure"]} | recorded(state, runtime, tool_step("answer", since(start)))
    toolbox.shown = _shown(toolbox, state["sql"])
    none: list[Definition] = []
    taught = toolbox.optional("present", partial(applied_definitions, state, toolbox), none)
    if toolbox.shown and taught:
        toolbox.shown = toolbox.optional("present", partial(in_taught_words, toolbox.shown, taught), toolbox.shown)
    nothing: list[str] = []
    spelled = toolbox.optional("present", partial(spellings_told, state, toolbox), nothing)
    together = ""
    if shown := toolbox.shown:
        together = toolbox.optional("present", partial(pooled, state["sql"], shown, toolbox.database.dialect), "")
    told = (in_words(state, toolbox), together, *(each.told for each in taught), *spelled)
    text = " ".join(filter(None, told))
    turns = state.get("turns") or []
    if state["preview"] is not None:
        turns = toolbox.optional("remember", lambda: [*turns, turn_of(state)], turns)
    step = tool_step("answer", since(start))
    update: dict[str, Any] = {"answer": text, "turns": turns}
    if judgement := toolbox.optional("confidence", partial(_judged_by_result, state, toolbox), None):
        update["judgement"] = judgement
    return update | recorded(state, runtime, step)


def _judged_by_result(state: State, toolbox: AgentContext) -> dict[str, Any] | None:
    """The judgement where the result itself is doubtful; not on SQL that a person wrote or chose."""
    if toolbox.shown is None or state["example"] or state["chosen"] or not toolbox.options.confidence:
        return None
    question, sql = asked(state), state["sql"]
    taught = (
        *toolbox.options.knowledge.about(question),
        *(name for name, _ in toolbox.options.knowledge.meant(question)),
    )
    surely = (match.phrase for match in values_of(state) if match.score >= SURE)
    explained = " ".join((state["evidence"], *taught, *surely))
    found = result_doubts(question, sql, toolbox.shown, toolbox.database.schema(), explained)
    if _was_quick(toolbox):
        repeated = repeated_by_joins(sql, toolbox.database, _quick_run(toolbox), question)
        found += [each.sentence for each in repeated[:1]]
    known = state["judgement"] or {"confidence": None, "doubts": [], "features": {}}
    return {**known, "probably_wrong": True, "doubts": [*found, *known["doubts"]]} if found else None


def in_words(state: State, toolbox: AgentContext) -> str:
    """The sentence that answers; the number of rows where there is none."""
    rows = len(toolbox.result.rows) if toolbox.result else 0
    writing = partial(sentence, state, toolbox.shown, toolbox.database.dialect)
    return toolbox.optional("sentence", writing, f"{rows:,} row{'s' * (rows != 1)}.")


def _shown(toolbox: AgentContext, sql: str) -> Shown | None:
    """What people are shown of the result; further queries for it only where the first was quick."""
    result = toolbox.result
    if result is None:
        return None
    if not toolbox.options.present or not _was_quick(toolbox):
        return plainly(result)
    labels = toolbox.options.knowledge.labels
    presenting = partial(present, result, sql, toolbox.database.schema(), _quick_run(toolbox), labels)
    return toolbox.optional("present", presenting, None) or plainly(result)


def _was_quick(toolbox: AgentContext) -> bool:
    """Whether further queries about the result may run."""
    return toolbox.result is not None and toolbox.result.wall_ms <= QUICK_MS


def _quick_run(toolbox: AgentContext) -> Run:
    limits = replace(toolbox.limits, deadline_s=min(toolbox.limits.deadline_s, QUICK_MS / 1e3))
    return partial(run_sql, toolbox.trail, toolbox.database, limits=limits)
