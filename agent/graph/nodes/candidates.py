"""SQL that the model wrote: checked, repaired, run, and whether there may be more of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agent.graph.ask_model import Reply
from agent.graph.nodes.model_dialect import translated
from agent.graph.nodes.node_state import values_of
from agent.graph.readings import asked
from agent.graph.toolbox import Toolbox
from agent.graph.vote import Candidate, Outcome, outcomes
from agent.observe.audit import run_sql
from agent.state import Attempt, DrawnPlan, State
from tools.linking.match_values import ValueMatch
from tools.linking.question_context import QuestionContext
from tools.repair.repair_query import repair_query
from tools.result import QueryError, Result


def candidates_of(state: State, toolbox: Toolbox, reply: Reply, plans: Sequence[DrawnPlan]) -> list[Candidate]:
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


def written(state: State, toolbox: Toolbox, reply: Reply) -> dict[str, Any]:
    """The update of the state that keeps the log-probabilities of the SQL in the reply."""
    candidates = map(toolbox.profile.read_sql, reply.texts)
    return {"log_probs": state["log_probs"] | dict(zip(candidates, map(list, reply.log_probs), strict=True))}


def check_sql(toolbox: Toolbox, sql: str, values: Sequence[ValueMatch], question: str) -> tuple[str, QueryError | None]:
    """The SQL, repaired if the options allow it, and the error that is left, if any."""
    if not sql:
        return sql, QueryError("syntax", "the model wrote no SQL")
    if not toolbox.options.repair:
        return sql, toolbox.database.explain(sql, toolbox.limits)
    context = QuestionContext(question, tuple(values), without=toolbox.options.without_rules)
    repairing = partial(repair_query, sql, toolbox.database, context, toolbox.limits)
    return toolbox.optional("repair", repairing, None) or (sql, toolbox.database.explain(sql, toolbox.limits))


def may_try_again(toolbox: Toolbox, attempts: list[Attempt]) -> bool:
    return len(attempts) < toolbox.options.max_attempts


def preview_of(result: Result, rows: int) -> dict[str, Any]:
    """What the state keeps of a result: columns, first rows, row count and truncated flag."""
    shown = [[_plain(cell) for cell in row] for row in result.rows[:rows]]
    return {
        "columns": list(result.columns), "rows": shown, "row_count": len(result.rows), "truncated": result.truncated
    }  # fmt: skip


def _plain(cell: Any) -> Any:
    return cell if cell is None or isinstance(cell, str | int | float | bool) else str(cell)
