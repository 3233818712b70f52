"""The nodes that check SQL, run it and make an answer of what it returns, also of what the result itself says against that:
it may not have the form that the question asks for. They need no model.
"""

import re
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from langgraph.types import Command
from sqlglot import exp

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
    translated,
    turn_of,
    values_of,
)
from agent.context import AgentContext
from agent.nodes.link import without_unmeant
from agent.observe.audit import run_sql
from agent.observe.step_record import tool_step
from agent.presentation.headings import in_taught_words
from agent.presentation.present import plainly, present
from agent.presentation.sentence import sentence
from agent.presentation.shown import Shown
from agent.state import Attempt, State
from tools.linking.taught import Definition
from tools.linking.word_forms import name_words
from tools.result import QueryError, Result
from tools.schema import Schema
from tools.sql.scope import parse_or_nothing

QUICK_MS = 2000
_MOST = re.compile(r"\b(?:most|least|fewest|highest|lowest|largest|smallest|best|worst|top|longest|shortest)\b", re.I)
_SHARE = re.compile(
    r"\b(?:what|which)\s+(?:share|percentage|percent|proportion|fraction)\b|\bshare of\b|\bpercentage of\b", re.I
)
_AVERAGE = re.compile(r"\b(?:average|mean)\s+\w+", re.I)
_EACH = re.compile(r"\b(?:for|by|in|of|per)\s+(?:each|every)\s+(\w+)|\bof\s+every\s+(\w+)", re.I)
_SHARE_WORDS = {"share", "percentage", "percent", "proportion", "fraction", "ratio", "rate", "pct"}
_AVERAGE_WORDS = {"average", "avg", "mean"}


def check(state: State, runtime: Tools) -> Command[Literal["execute", "refine", "doubt", "plan", "vary"]]:
    """Guard and bind the SQL without running it; repair it if a deterministic rule can, unless a person wrote or chose it. A
    follow-up that got the SQL of an earlier question is planned again as a self-contained question, SQL that compares with a
    value which the question hardly means without that value, and SQL that the asker has refused is varied.
    """
    start, toolbox = begin(runtime, "check"), runtime.context
    sql = _to_run(state, toolbox)
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
        update = {"checked": fixed} | recorded(state, runtime, tool_step("check", since(start), detail))
        return Command(update=update, goto="execute")
    if toolbox.trail:
        toolbox.trail.turned_down(toolbox.database, sql, error)
    attempts = [*state["attempts"], Attempt(sql=sql, repaired=False, error=asdict(error), row_count=None)]
    update = {"attempts": attempts} | recorded(state, runtime, tool_step("check", since(start), error.message))
    return Command(update=update, goto="refine" if may_try_again(toolbox, attempts) else "doubt")


def execute(state: State, runtime: Tools) -> Command[Literal["doubt", "refine"]]:
    """Run the SQL read-only, with a deadline, a memory limit and a row cap."""
    toolbox, sql = runtime.context, state["checked"]
    start = begin(runtime, "execute")
    result = run_sql(toolbox.trail, toolbox.database, sql, toolbox.limits)
    wall_ms = since(start)
    failed = isinstance(result, QueryError)
    attempt = Attempt(
        sql=sql,
        repaired=sql != _to_run(state, toolbox),
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


def _to_run(state: State, toolbox: AgentContext) -> str:
    """The candidate in the database's dialect. What is not the model's text, such as a stored example, is in it already."""
    sql = state["candidate"]
    return translated(toolbox, sql, state) if sql in state["log_probs"] else sql


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
    text = " ".join((in_words(state, toolbox), *(each.told for each in taught)))
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
    found = result_doubts(asked(state), state["sql"], toolbox.shown, toolbox.database.schema())
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
    if not toolbox.options.present or result.wall_ms > QUICK_MS:
        return plainly(result)
    limits = replace(toolbox.limits, deadline_s=min(toolbox.limits.deadline_s, QUICK_MS / 1e3))
    run = partial(run_sql, toolbox.trail, toolbox.database, limits=limits)
    labels = toolbox.options.knowledge.labels
    presenting = partial(present, result, sql, toolbox.database.schema(), run, labels)
    return toolbox.optional("present", presenting, None) or plainly(result)


def result_doubts(question: str, sql: str, shown: Shown, schema: Schema) -> list[str]:
    """What is doubtful, a sentence each."""
    trees = parse_or_nothing(sql, schema.dialect)
    if len(trees) != 1 or not shown.rows:
        return []
    found = [
        _level(question, shown),
        _repeated(shown),
        _no_share(question, trees[0], shown),
        _one_for_each(question, shown),
    ]
    return [each for each in found if each]


def _level(question: str, shown: Shown) -> str:
    """Nobody has most where all have the same."""
    if shown.sorting is None or not _MOST.search(question):
        return ""
    place, rows = shown.sorting.place, shown.tied or shown.rows
    if shown.columns[place].kind != "amount" or len(rows) < 3 or len({row[place] for row in rows}) > 1:
        return ""
    return f"All of them have the same {shown.columns[place].heading}: nobody leads."


def _repeated(shown: Shown) -> str:
    """Rows that are called "380 countries" are ten."""
    if len(shown.columns) != 1 or not shown.columns[0].is_label:
        return ""
    different = len({row[0] for row in shown.rows})
    if 2 * different > len(shown.rows):
        return ""
    return f"The same values come again and again: {different:,} different ones in {len(shown.rows):,} rows."


def _no_share(question: str, tree: exp.Expr, shown: Shown) -> str:
    """A count is no share, and a sum no average."""
    names = {word for column in tree.find_all(exp.Column, exp.Alias) for word in name_words(column.alias_or_name)}
    names |= {word for column in shown.columns for word in name_words(column.heading)}
    divides = tree.find(exp.Div, exp.Avg, exp.Median, exp.PercentileCont, exp.Window) is not None
    if divides or not any(column.kind in ("amount", "digits") for column in shown.columns):
        return ""
    if _SHARE.search(question) and not names & _SHARE_WORDS:
        return "The question asks for a share; this is a number of which nothing was divided."
    if _AVERAGE.search(question) and not names & _AVERAGE_WORDS:
        return "The question asks for an average; none was computed."
    return ""


def _one_for_each(question: str, shown: Shown) -> str:
    """One number for all does not say what each has."""
    each = _EACH.search(question)
    if each is None or len(shown.rows) != 1 or len(shown.columns) != 1:
        return ""
    return f"The question asks about each {each.group(1) or each.group(2)}; this is one number for all."
