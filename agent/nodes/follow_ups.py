"""The graph's nodes for conversations. They decide how a question relates to the turns before it, change the former SQL
where a rule is sure, and look for another query when the asker has refused one.
"""

from dataclasses import asdict
from typing import Any, Literal

from langgraph.types import Command

from agent.ask_model import ask_model
from agent.candidates import (
    Tools,
    begin,
    candidates_of,
    continued,
    continued_number,
    drawn_plans,
    elect,
    recorded,
    same_sql,
    since,
    slots,
    values_of,
)
from agent.context import AgentContext
from agent.follow_ups import Relation, gone_on, relation_of, resolve, without_reset
from agent.nodes.link import small_talk, write_request
from agent.observe.step_record import tool_step
from agent.state import Attempt, State, proposed
from tools.adapt.adapt_filter import FILTER_CHANGES, adapt_query
from tools.adapt.adapt_order import ORDER_CHANGES, SHAPE_CHANGES, compare_queries
from tools.linking.link_schema import mentions
from tools.result import QueryError, Result
from tools.schema import Schema

STARTED_OVER = "Started over: the next question is taken by itself."
VARYING_TEMPERATURES = (0.8, 1.2)
VARYING_SAMPLES = 4


def relate(state: State, runtime: Tools) -> Command[Literal["link", "__end__"]]:
    """Decide whether the question is self-contained or continues an earlier one. Needs no model."""
    if told := write_request(state["question"]):
        return _refused(state, runtime, told)
    data = runtime.context.database
    if told := small_talk(state["question"], data.schema(), data.name):
        return _told(state, runtime, told)
    rest = without_reset(state["question"])
    if rest is None and (completed := _completed(state, data.schema())):
        goes_on = completed["completes"]
        detail = f"continues question {goes_on}" if goes_on else "settles the question that was asked back"
        step = tool_step("relate", since(begin(runtime, "relate")), detail)
        return Command(update=completed | recorded(state, runtime, step), goto="link")
    turns = [] if rest is not None else state.get("turns") or []
    if rest is None and not turns:
        return Command(update={"open": None, "readings": ["standalone"], "reading": "standalone"}, goto="link")
    start, database = begin(runtime, "relate"), runtime.context.database
    if rest == "":
        step = tool_step("relate", since(start), "started over")
        update: dict[str, Any] = {
            "turns": [],
            "open": None,
            "answer": STARTED_OVER,
            "told": True,
            "reading": "standalone",
        }
        return Command(update=update | recorded(state, runtime, step), goto="__end__")
    question = rest or state["question"]
    schema = database.schema()
    named = mentions(schema, question)
    relation = relation_of(question, named, turns, schema.dialect)
    readings = [state["requested"]] if state["requested"] and turns else list(relation.readings)
    update = {"question": question, "turns": turns, "open": None, "readings": readings, "reading": readings[0]}
    update |= {"leans_on": relation.turn if turns else None}
    if readings == ["follow_up"] and turns and runtime.context.options.adapt:
        turn = turns[relation.turn]
        former = mentions(schema, turn["question"])
        update["resolved"] = resolve(question, turn, named, former, schema.dialect) or ""
    step = tool_step("relate", since(start), _in_words(relation, state | update))  # type: ignore[arg-type]
    return Command(update=update | recorded(state, runtime, step), goto="link")


def _completed(state: State, schema: Schema) -> dict[str, Any] | None:
    """The update of the state where the question settles one that was asked back, or goes on from it."""
    opened = None if state["requested"] == "standalone" else state.get("open")
    if not opened:
        return None
    question, former = state["question"], opened["question"]
    meant = gone_on(
        question, state["evidence"], opened, mentions(schema, question), mentions(schema, former), schema.dialect
    )
    if meant is None:
        return None
    settles = question in (opened["said"], former)
    alone: dict[str, Any] = {"open": None, "readings": ["standalone"], "reading": "standalone"}
    return alone | {"question": meant[0], "evidence": meant[1], "completes": None if settles else opened["number"]}


def _refused(state: State, runtime: Tools, told: str) -> Command[Literal["link", "__end__"]]:
    """End with the answer that nothing is changed."""
    step = tool_step("relate", since(begin(runtime, "relate")), "a request to change data")
    attempt = Attempt(sql="", repaired=False, error=asdict(QueryError("refused", told)), row_count=None)
    update = {"answer": told, "attempts": [attempt], "reading": "standalone"} | recorded(state, runtime, step)
    return Command(update=update, goto="__end__")


def _told(state: State, runtime: Tools, told: str) -> Command[Literal["link", "__end__"]]:
    """End with words: nothing was asked of the data, and the next question may go on from those before."""
    step = tool_step("relate", since(begin(runtime, "relate")), "no question about the data")
    update: dict[str, Any] = {"answer": told, "told": True, "reading": "standalone"}
    return Command(update=update | recorded(state, runtime, step), goto="__end__")


def _in_words(relation: Relation, state: State) -> str:
    number = continued_number(state | {"reading": "follow_up"})
    if len(state["readings"]) > 1:
        return f"perhaps a follow-up of question {number}"
    return "stands by itself" if state["reading"] == "standalone" else f"continues question {number}"


def adapt(state: State, runtime: Tools) -> Command[Literal["check", "plan"]]:
    """Change the SQL of the turn that a follow-up continues, if a rule is sure of the change. Needs no model."""
    start, toolbox = begin(runtime, "adapt"), runtime.context
    turn, schema = continued(state), toolbox.database.schema()
    known = turn is not None and toolbox.options.adapt and not state["resolved"]
    sql = _changed(state, turn["sql"], schema) if known and turn else None
    if sql is None or _is_refused(sql, state, toolbox) or toolbox.database.explain(sql, toolbox.limits) is not None:
        return Command(
            update=recorded(state, runtime, tool_step("adapt", since(start), "no change is sure")), goto="plan"
        )
    step = tool_step("adapt", since(start), "the former SQL, changed")
    return Command(update={"candidate": proposed(sql)} | recorded(state, runtime, step), goto="check")


def _changed(state: State, former: str, schema: Schema) -> str | None:
    """The former SQL as the question changes it, or a comparison of the newest ones."""
    place = state["leans_on"]
    formers = [turn["sql"] for turn in (state.get("turns") or [])[: None if place is None else place + 1]]
    changes = (*FILTER_CHANGES, *ORDER_CHANGES, *SHAPE_CHANGES)
    compared = compare_queries(state["question"], formers, schema.dialect)
    return compared or adapt_query(state["question"], former, values_of(state), schema, changes)


def vary(state: State, runtime: Tools) -> Command[Literal["execute", "answer"]]:
    """Sample plans and their SQL until one gives a query that the asker has not refused."""
    toolbox, steps = runtime.context, []
    for attempt, temperature in enumerate(VARYING_TEMPERATURES, 1):
        drawing: dict[str, Any] = {"temperature": temperature, "attempt": attempt}
        reply = ask_model(toolbox, "plan", slots(state, toolbox), samples=VARYING_SAMPLES, **drawing)
        plans = drawn_plans(map(toolbox.profile.read_plan, reply.texts), reply.log_likelihoods, state["reading"])
        first, *others = (slots(state | {"plan": each["text"]}, toolbox) for each in plans)
        written = ask_model(toolbox, "generate", first, batch=others, **drawing)
        steps += [reply.step, written.step]
        new = [
            each for each in candidates_of(state, toolbox, written, plans) if not _is_refused(each.sql, state, toolbox)
        ]
        if new and isinstance((best := elect(new, toolbox.database.dialect)[0]).outcome, Result):
            update = {"candidate": best.proposal, "plan": best.plan}
            return Command(update=update | recorded(state, runtime, *steps), goto="execute")
    trouble = asdict(QueryError("other", "every further try came to a query that you have seen"))
    attempts = [
        *state["attempts"],
        Attempt(sql=state["candidate"]["sql"], repaired=False, error=trouble, row_count=None),
    ]
    return Command(update={"attempts": attempts} | recorded(state, runtime, *steps), goto="answer")


def _is_refused(sql: str, state: State, toolbox: AgentContext) -> bool:
    return any(same_sql(sql, refused, toolbox.database.dialect) for refused in state["refused"])
