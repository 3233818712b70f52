"""The nodes of the graph, one function each. A node's return type names the nodes that may come next."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.graph.ask_model import Reply, ask_model
from agent.graph.presentation.answer_text import REPEATED, asked_back, sentence
from agent.graph.presentation.present import plainly, present
from agent.graph.presentation.shown import Shown
from agent.graph.prompt_slots import prompt_slots, tries_of
from agent.graph.readings import asked, choose_reading, history, repeats_a_turn, turn_of
from agent.graph.toolbox import Toolbox
from agent.graph.vote import Candidate, Outcome, drawn_plans, elect, outcomes, same_sql
from agent.observe.audit import run_sql
from agent.observe.events import Finished, Started, Unclear, Wrote
from agent.observe.step_record import Step, tool_step
from agent.prompts.mend_plan import mend_plan
from agent.prompts.slots import Slots
from agent.state import Attempt, DrawnPlan, State
from tools.databases.reading.choices import with_choices
from tools.linking.ambiguity import as_told, find_unclear
from tools.linking.link_schema import Link, link
from tools.linking.match_values import ValueMatch, match_values
from tools.repair.repair_query import repair_query
from tools.result import QueryError, Result
from tools.schema import Schema

QUICK_MS = 2000
Tools = Runtime[Toolbox]
_REPEATED = asdict(QueryError("other", REPEATED))


def link_schema(state: State, runtime: Tools) -> Command[Literal["clarify", "adapt", "plan", "check"]]:
    """Find the tables, columns and cell values that the question is about, or the stored example that asks the same. Needs no
    model. SQL that the asker has chosen is taken as it is.
    """
    start, toolbox = begin(runtime, "link"), runtime.context
    if chosen := state["chosen"]:
        step = tool_step("link", since(start), "the reading that was chosen")
        return Command(update={"candidate": chosen} | recorded(state, runtime, step), goto="check")
    example = toolbox.options.knowledge.example(state["question"])
    if example and example[1] not in state["refused"]:
        known = {"example": example[0], "candidate": example[1]}
        step = tool_step("link", since(start), "the SQL of a stored example")
        return Command(update=known | recorded(state, runtime, step), goto="check")
    schema = toolbox.database.schema()
    question = asked(state)
    text = f"{question} {state['evidence']}".strip()
    values = match_values(toolbox.database, text) if toolbox.options.values else ()
    if toolbox.options.clarify:
        values = as_told(values, state["evidence"])
    links = link(schema, question, values) if toolbox.options.hints else ()
    step = tool_step("link", since(start), f"{len(links)} links, {len(values)} values")
    update = {"values": [asdict(value) for value in values], "links": [asdict(each) for each in links]}
    leans = state["readings"] == ["follow_up"] and bool(state.get("turns"))
    ask_back = toolbox.options.clarify and not state["evidence"] and not leans
    goto: Literal["clarify", "adapt", "plan"] = "adapt" if leans else "clarify" if ask_back else "plan"
    return Command(update=update | recorded(state, runtime, step), goto=goto)


def clarify(state: State, runtime: Tools) -> Command[Literal["plan", "__end__"]]:
    """Offer the asker the possible meanings of an ambiguous question. The choice comes back as evidence of the same
    question, so that nobody is asked twice. Needs no model.
    """
    start, database = begin(runtime, "clarify"), runtime.context.database
    links = [Link(**each) for each in state["links"]]
    meanings = find_unclear(database, state["question"], values_of(state), links)
    step = tool_step("clarify", since(start), f"{len(meanings)} meanings" if meanings else "clear")
    update: dict[str, Any] = recorded(state, runtime, step)
    if not meanings:
        return Command(update=update, goto="plan")
    options = {one.label: one.evidence for one in meanings}
    runtime.stream_writer(Unclear(meanings[0].phrase, options))
    return Command(update=update | {"unclear": options, "answer": asked_back(meanings)}, goto="__end__")


def plan(state: State, runtime: Tools) -> Command[Literal["generate"]]:
    """Let the model name what it will use and sketch the SQL: once, once for each reading, or once for each vote."""
    toolbox, readings = runtime.context, state["readings"]
    first, *others = (slots(state | {"reading": reading}, toolbox) for reading in readings)
    reply = ask_model(toolbox, "plan", first, beside=others, **({} if others else _voting(toolbox)))
    texts = (_mended(toolbox, toolbox.profile.read_plan(text), first.schema) for text in reply.texts)
    if others:
        drawn = zip(texts, reply.log_likelihoods, readings, strict=True)
        plans = [DrawnPlan(text=text, drawn=1, log_likelihood=known, reading=reading) for text, known, reading in drawn]
    else:
        plans = drawn_plans(texts, reply.log_likelihoods, readings[0])
    update = {"plan": plans[0]["text"], "plans": plans} | recorded(state, runtime, reply.step)
    return Command(update=update, goto="generate")


def _mended(toolbox: Toolbox, plan: str, schema: Schema) -> str:
    mends = toolbox.options.mends
    return mend_plan(plan, schema, columns="columns" in mends, bridges="bridges" in mends)


def generate(state: State, runtime: Tools) -> Command[Literal["check"]]:
    """Let the model write SQL, greedily: once, or once for each different plan. Several candidates then vote."""
    toolbox, plans = runtime.context, state["plans"]
    first, *others = (slots(state | {"plan": each["text"], "reading": each["reading"]}, toolbox) for each in plans)
    reply = ask_model(toolbox, "generate", first, beside=others)
    if not others:
        sql = toolbox.profile.read_sql(reply.texts[0])
        update = {"candidate": sql} | written(state, toolbox, reply) | recorded(state, runtime, reply.step)
        return Command(update=update, goto="check")
    if len(state["readings"]) > 1:
        return _read(state, runtime, reply)
    start = begin(runtime, "vote")
    candidates = candidates_of(state, toolbox, reply, plans)
    ranked = elect(candidates, toolbox.database.dialect)
    elected = candidates.index(replace(ranked[0], votes=0))
    runtime.stream_writer(Wrote("vote", reply.texts[elected], reply.rounds[elected]))  # how the elected one was decoded
    voting = tool_step("vote", since(start), f"{ranked[0].votes} of {toolbox.options.samples} agree")
    update = {"candidate": ranked[0].sql, "plan": ranked[0].plan} | written(state, toolbox, reply)
    update |= recorded(state, runtime, reply.step, voting)
    return Command(update=update, goto="check")


def _read(state: State, runtime: Tools, reply: Reply) -> Command[Literal["check"]]:
    """Choose the reading whose SQL covers the question better."""
    start, toolbox, plans = begin(runtime, "choose"), runtime.context, state["plans"]
    candidates = [toolbox.profile.read_sql(text) for text in reply.texts]
    checked = [_checked(toolbox, sql, values_of(state), asked(state)) for sql in candidates]
    chosen = choose_reading(state, toolbox.database.schema(), checked)
    runtime.stream_writer(Wrote("choose", reply.texts[chosen], reply.rounds[chosen]))
    reading = plans[chosen]["reading"]
    choice = tool_step("choose", since(start), "by itself" if reading == "standalone" else "as a follow-up")
    update = {"candidate": candidates[chosen], "plan": plans[chosen]["text"], "reading": reading}
    update |= written(state, toolbox, reply)
    return Command(update=update | recorded(state, runtime, reply.step, choice), goto="check")


def written(state: State, toolbox: Toolbox, reply: Reply) -> dict[str, Any]:
    """The update of the state that keeps the log-probabilities of the SQL in the reply."""
    candidates = map(toolbox.profile.read_sql, reply.texts)
    return {"log_probs": state["log_probs"] | dict(zip(candidates, map(list, reply.log_probs), strict=True))}


def check(state: State, runtime: Tools) -> Command[Literal["execute", "refine", "doubt", "plan", "vary"]]:
    """Guard and bind the SQL without running it; repair it if a deterministic rule can. A follow-up that got the SQL of an
    earlier question is planned again as a self-contained question, and SQL that the asker has refused is varied.
    """
    start, toolbox = begin(runtime, "check"), runtime.context
    sql = state["candidate"]
    fixed, error = _checked(toolbox, sql, values_of(state), asked(state))
    if error is None:
        detail = "repaired" if fixed != sql else "fine"
        if not state["chosen"] and repeats_a_turn(state, fixed, toolbox.database.dialect):
            step = tool_step("check", since(start), "the SQL of an earlier question")
            again = {"readings": ["standalone"], "reading": "standalone", "plan": ""}
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
    return Command(update=update, goto="refine" if _may_try_again(toolbox, attempts) else "doubt")


def execute(state: State, runtime: Tools) -> Command[Literal["doubt", "refine"]]:
    """Run the SQL read-only, with a deadline, a memory limit and a row cap."""
    toolbox, sql = runtime.context, state["checked"]
    start = begin(runtime, "execute")
    result = run_sql(toolbox.trail, toolbox.database, sql, toolbox.limits)
    wall_ms = since(start)
    failed = isinstance(result, QueryError)
    attempt = Attempt(
        sql=sql,
        repaired=sql != state["candidate"],
        error=asdict(result) if isinstance(result, QueryError) else None,
        row_count=None if isinstance(result, QueryError) else len(result.rows),
    )
    update: dict[str, Any] = {"attempts": [*state["attempts"], attempt]}
    update |= recorded(state, runtime, tool_step("execute", wall_ms, _outcome(result)))
    if isinstance(result, Result) and (result.rows or state["preview"] is None):
        toolbox.keep(result)
        update |= {"sql": sql, "preview": preview_of(result, toolbox.options.preview_rows)}
    first_empty = toolbox.options.refine_empty and attempt["row_count"] == 0 and state["preview"] is None
    again = (failed or first_empty) and _may_try_again(toolbox, update["attempts"])
    return Command(update=update, goto="refine" if again else "doubt")


def refine(state: State, runtime: Tools) -> Command[Literal["check", "refine", "doubt"]]:
    """Show the model what went wrong and let it correct the SQL. SQL that was tried before is not tried again."""
    toolbox, attempts = runtime.context, state["attempts"]
    temperature = toolbox.options.vote_temperature if len(attempts) > 1 else None  # greedy decoding would repeat itself
    lost = (attempts[-1]["error"] or {}).get("kind") == "syntax"  # facts may have kept the SQL from ending
    now = slots(state, toolbox)
    reply = ask_model(toolbox, "refine", now, attempt=len(attempts), temperature=temperature, bound=not lost)
    sql = toolbox.profile.read_sql(reply.texts[0])
    if not any(same_sql(sql, attempt["sql"], toolbox.database.dialect) for attempt in attempts):
        update = {"candidate": sql} | written(state, toolbox, reply) | recorded(state, runtime, reply.step)
        return Command(update=update, goto="check")
    again = _may_try_again(toolbox, attempts) and attempts[-1]["error"] != _REPEATED
    attempts = [*attempts, Attempt(sql=sql, repaired=False, error=_REPEATED, row_count=None)]
    update = {"attempts": attempts} | recorded(state, runtime, reply.step)
    return Command(update=update, goto="refine" if again and _may_try_again(toolbox, attempts) else "doubt")


def answer(state: State, runtime: Tools) -> dict[str, Any]:
    """Prepare what is shown, write one sentence from it, and remember the turn for follow-up questions."""
    start, toolbox = begin(runtime, "answer"), runtime.context
    toolbox.shown = _shown(toolbox, state["sql"])
    text = sentence(state, toolbox.shown, toolbox.database.dialect)
    turns = state.get("turns") or []
    if state["preview"] is not None:
        turns = [*turns, turn_of(state)]
    step = tool_step("answer", since(start))
    return {"answer": text, "turns": turns} | recorded(state, runtime, step)


def _shown(toolbox: Toolbox, sql: str) -> Shown | None:
    """What people are shown of the result; further queries for it only where the first was quick."""
    result = toolbox.result
    if result is None:
        return None
    if not toolbox.options.present or result.wall_ms > QUICK_MS:
        return plainly(result)
    limits = replace(toolbox.limits, deadline_s=min(toolbox.limits.deadline_s, QUICK_MS / 1e3))
    run = partial(run_sql, toolbox.trail, toolbox.database, limits=limits)
    return present(result, sql, toolbox.database.schema(), run, toolbox.options.knowledge.labels)


def slots(state: State, toolbox: Toolbox) -> Slots:
    """The prompt's slots from the state."""
    return prompt_slots(
        asked(state),
        shown_schema(toolbox),
        toolbox.database.dialect,
        toolbox.options,
        links=tuple(Link(**each) for each in state["links"]),
        values=values_of(state),
        history=history(state),
        plan=state["plan"],
        tries=tries_of(state["attempts"]),
        knowledge=toolbox.options.knowledge.about(state["question"]),
        evidence=state["evidence"],
    )


def shown_schema(toolbox: Toolbox) -> Schema:
    """The schema, with the values of columns that have few, if prompts may show values and the profile's do."""
    schema = toolbox.database.schema()
    wanted = toolbox.options.values and toolbox.profile.shows_choices
    return with_choices(schema, toolbox.database) if wanted else schema


def values_of(state: State) -> tuple[ValueMatch, ...]:
    return tuple(ValueMatch(**each) for each in state["values"])


def _checked(toolbox: Toolbox, sql: str, values: Sequence[ValueMatch], question: str) -> tuple[str, QueryError | None]:
    """The SQL, repaired if the options allow it, and the error that is left, if any."""
    if not sql:
        return sql, QueryError("syntax", "the model wrote no SQL")
    if not toolbox.options.repair:
        return sql, toolbox.database.explain(sql, toolbox.limits)
    return repair_query(sql, toolbox.database, values, toolbox.limits, question, toolbox.options.mends)


def _outcome(result: Result | QueryError) -> str:
    if isinstance(result, QueryError):
        return result.message
    return f"{len(result.rows)} rows" + (", cut off" if result.truncated else "")


def _voting(toolbox: Toolbox) -> dict[str, Any]:
    """The arguments of `ask_model` if candidates vote; none otherwise."""
    count = toolbox.options.samples
    return {"samples": count, "temperature": toolbox.options.vote_temperature} if count > 1 else {}


def candidates_of(state: State, toolbox: Toolbox, reply: Reply, plans: Sequence[DrawnPlan]) -> list[Candidate]:
    """A candidate for each plan and its text in the reply, repaired and run; together they have the time of one query."""
    values, question = values_of(state), asked(state)
    checked = [_checked(toolbox, toolbox.profile.read_sql(text), values, question) for text in reply.texts]

    def run(sql: str, deadline_s: float) -> Outcome:
        return run_sql(toolbox.trail, toolbox.database, sql, replace(toolbox.limits, deadline_s=deadline_s))

    found = zip(plans, checked, outcomes(checked, run, toolbox.limits.deadline_s), reply.log_likelihoods, strict=True)
    return [
        Candidate(sql, outcome, plan["log_likelihood"] + log_likelihood, plan["drawn"], plan=plan["text"])
        for plan, (sql, _), outcome, log_likelihood in found
    ]


def _may_try_again(toolbox: Toolbox, attempts: list[Attempt]) -> bool:
    return len(attempts) < toolbox.options.max_attempts


def preview_of(result: Result, rows: int) -> dict[str, Any]:
    """What the state keeps of a result: columns, first rows, row count and truncated flag."""
    shown = [[_plain(cell) for cell in row] for row in result.rows[:rows]]
    return {
        "columns": list(result.columns), "rows": shown, "row_count": len(result.rows), "truncated": result.truncated
    }  # fmt: skip


def _plain(cell: Any) -> Any:
    return cell if cell is None or isinstance(cell, str | int | float | bool) else str(cell)


def recorded(state: Mapping[str, Any], runtime: Tools, *steps: Step) -> dict[str, Any]:
    records = [step.to_dict() for step in steps]
    for record in records:
        runtime.stream_writer(Finished(record))
    return {"steps": [*state["steps"], *records]}


def begin(runtime: Tools, name: str) -> float:
    runtime.stream_writer(Started(name))
    return perf_counter()


def since(start: float) -> float:
    return 1e3 * (perf_counter() - start)
