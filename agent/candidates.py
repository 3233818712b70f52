"""What nodes share: what they read from the state, and how SQL that the model wrote is checked, repaired and run.

What all nodes share: what they read from the state, and what they record in it.

SQL that the model wrote: checked, repaired, run, and whether there may be more of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from langgraph.runtime import Runtime

from agent.ask_model import Reply, prompt_slots, tries_of
from agent.context import AgentContext
from agent.observe.audit import run_sql
from agent.observe.events import Finished, Started
from agent.observe.step_record import Step
from agent.outcomes import Candidate, Outcome, as_written, model_dialect, outcomes, translated
from agent.prompts.slots import Slots
from agent.readings import asked, history
from agent.state import Attempt, DrawnPlan, State
from tools.databases.choices import with_choices
from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.linking.question_context import QuestionContext
from tools.repair.repair_query import repair_query
from tools.result import QueryError, Result
from tools.schema import in_dialect

Tools = Runtime[AgentContext]


def slots(state: State, toolbox: AgentContext) -> Slots:
    """The prompt's slots from the state."""
    dialect, examples = model_dialect(toolbox), toolbox.options.knowledge.similar(state["question"])
    shown = prompt_slots(
        asked(state),
        in_dialect(toolbox.database.schema(), dialect),
        dialect,
        toolbox.options,
        links=tuple(Link(**each) for each in state["links"]),
        values=values_of(state),
        history=tuple((question, as_written(toolbox, sql)) for question, sql in history(state)),
        plan=state["plan"],
        tries=tuple(replace(each, sql=as_written(toolbox, each.sql)) for each in tries_of(state["attempts"])),
        knowledge=toolbox.options.knowledge.about(state["question"]),
        examples=tuple((question, as_written(toolbox, sql)) for question, sql in examples),
        evidence=state["evidence"],
    )
    if not (toolbox.options.values and toolbox.profile.shows_choices):
        return shown
    return replace(shown, schema=with_choices(shown.schema, toolbox.database))


def values_of(state: State) -> tuple[ValueMatch, ...]:
    return tuple(ValueMatch(**each) for each in state["values"])


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


def candidates_of(state: State, toolbox: AgentContext, reply: Reply, plans: Sequence[DrawnPlan]) -> list[Candidate]:
    """A candidate for each plan and its text in the reply, repaired and run; together they have the time of one query."""
    values, question = values_of(state), asked(state)
    sqls = [translated(toolbox, toolbox.profile.read_sql(text)) for text in reply.texts]
    checked = [check_sql(toolbox, sql, values, question) for sql in sqls]

    def run(sql: str, deadline_s: float) -> Outcome:
        return run_sql(toolbox.trail, toolbox.database, sql, replace(toolbox.limits, deadline_s=deadline_s))

    found = zip(plans, checked, outcomes(checked, run, toolbox.limits.deadline_s), reply.log_likelihoods, strict=True)
    return [
        Candidate(sql, outcome, plan["log_likelihood"] + log_likelihood, plan["drawn"], plan=plan["text"])
        for plan, (sql, _), outcome, log_likelihood in found
    ]


def written(state: State, toolbox: AgentContext, reply: Reply) -> dict[str, Any]:
    """The update of the state that keeps the log-probabilities of the SQL in the reply."""
    candidates = map(toolbox.profile.read_sql, reply.texts)
    return {"log_probs": state["log_probs"] | dict(zip(candidates, map(list, reply.log_probs), strict=True))}


def check_sql(
    toolbox: AgentContext, sql: str, values: Sequence[ValueMatch], question: str
) -> tuple[str, QueryError | None]:
    """The SQL, repaired if the options allow it, and the error that is left, if any."""
    if not sql:
        return sql, QueryError("syntax", "the model wrote no SQL")
    if not toolbox.options.repair:
        return sql, toolbox.database.explain(sql, toolbox.limits)
    context = QuestionContext(question, tuple(values), without=toolbox.options.without_rules)
    repairing = partial(repair_query, sql, toolbox.database, context, toolbox.limits)
    return toolbox.optional("repair", repairing, None) or (sql, toolbox.database.explain(sql, toolbox.limits))


def may_try_again(toolbox: AgentContext, attempts: list[Attempt]) -> bool:
    return len(attempts) < toolbox.options.max_attempts


def preview_of(result: Result, rows: int) -> dict[str, Any]:
    """What the state keeps of a result: columns, first rows, row count and truncated flag."""
    shown = [[_plain(cell) for cell in row] for row in result.rows[:rows]]
    return {
        "columns": list(result.columns), "rows": shown, "row_count": len(result.rows), "truncated": result.truncated
    }  # fmt: skip


def _plain(cell: Any) -> Any:
    return cell if cell is None or isinstance(cell, str | int | float | bool) else str(cell)
