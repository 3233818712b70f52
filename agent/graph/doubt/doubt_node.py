"""The node that says how sure an answer is and, where it is doubtful and the asker wants it, takes a second look: it has
other plans written, compares them by the model's hidden states, offers them, and answers with one that is clearly better."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal, cast

from langgraph.types import Command

from agent.graph.ask_model import ask_model
from agent.graph.doubt.judge import Judgement, OtherReading, judge
from agent.graph.doubt.other_plans import other_plans
from agent.graph.doubt.query_states import query_summaries
from agent.graph.doubt.verifier import Verifier
from agent.graph.nodes.candidates import candidates_of, preview_of, written
from agent.graph.nodes.model_dialect import translated
from agent.graph.nodes.node_state import Tools, begin, recorded, since, slots
from agent.graph.toolbox import Toolbox
from agent.graph.vote import Candidate, fingerprint
from agent.observe.step_record import Step, tool_step
from agent.state import Attempt, State
from tools.result import Result
from tools.sql.in_words import in_words

OFFERED = 2
SURER = 0.1  # by how much another reading's confidence must be higher to be the answer, where there is no verifier


@dataclass(frozen=True, slots=True)
class Reading:
    """A query that the question may mean, as if it were the answer. votes: how many of the plans give its rows; worth: what
    readings are compared by, once they are."""

    state: State
    result: Result
    judgement: Judgement
    votes: int
    worth: float = 0.0

    @property
    def confidence(self) -> float:
        return self.judgement["confidence"] or 0.0

    def offered(self, dialect: str) -> OtherReading:
        sql = self.state["sql"]
        return OtherReading(sql=sql, words=in_words(sql, dialect), confidence=self.confidence, votes=self.votes)


def doubt(state: State, runtime: Tools) -> Command[Literal["answer"]]:
    """Judge the SQL that ran. Nothing is judged where a person wrote or chose it, or a rule that is sure changed the former."""
    toolbox = runtime.context
    by_the_model = bool(state["plan"]) and not (state["example"] or state["chosen"])
    if state["preview"] is None or not by_the_model or not toolbox.options.confidence:
        return Command(goto="answer")
    judging = partial(judge, state, toolbox.database.schema(), toolbox.calibration)
    judgement = toolbox.optional("confidence", judging, None)
    if judgement is None:
        return Command(goto="answer")
    if not _is_doubtful(judgement, toolbox):
        return Command(update={"judgement": judgement}, goto="answer")
    begin(runtime, "doubt")
    own = toolbox.result
    update = toolbox.optional("readings", partial(_second_look, state, judgement, runtime), None)
    if update is None:
        toolbox.keep(own)
        update = {"judgement": judgement}
    return Command(update=update, goto="answer")


def _second_look(state: State, judgement: Judgement, runtime: Tools) -> dict[str, Any]:
    """The update that answers with the best reading."""
    toolbox = runtime.context
    readings, steps = _readings(state, judgement, toolbox)
    if toolbox.watch:
        toolbox.watch.tell(readings)
    compared, comparing = _compared(readings, toolbox)
    return _best(compared, toolbox) | recorded(state, runtime, *steps, *comparing)


def _is_doubtful(judgement: Judgement, toolbox: Toolbox) -> bool:
    """Whether other readings are looked for."""
    confidence, verifier = judgement["confidence"], toolbox.verifier
    if toolbox.watch:
        return confidence is None or confidence < toolbox.watch.below
    low = confidence is not None and verifier is not None and confidence < verifier.look_below
    return toolbox.options.second_look and (low or judgement["probably_wrong"])


def _compared(readings: Sequence[Reading], toolbox: Toolbox) -> tuple[list[Reading], list[Step]]:
    """The readings with their worth, by the verifier or, without one, by the confidence; and the step that found it out."""
    verifier = toolbox.verifier
    if verifier is None:
        return [replace(one, worth=one.confidence) for one in readings], []
    start = perf_counter()
    summaries = query_summaries([one.state for one in readings], toolbox, verifier.tap)
    worths = [verifier.worth(each, one.confidence) for each, one in zip(summaries, readings, strict=True)]
    made = [_judged_by(worth, one, verifier, toolbox) for worth, one in zip(worths, readings, strict=True)]
    return made, [tool_step("verify", since(start), f"{len(readings)} reading" + "s" * (len(readings) > 1))]


def _judged_by(worth: float, reading: Reading, verifier: Verifier, toolbox: Toolbox) -> Reading:
    """The reading with its worth and, where it is known how often readings of that worth are right, a confidence by it."""
    calibration, schema = verifier.calibration, toolbox.database.schema()
    judgement = judge(reading.state, schema, calibration, {"worth": worth}) if calibration else reading.judgement
    return replace(reading, worth=worth, judgement=judgement)


def _best(readings: Sequence[Reading], toolbox: Toolbox) -> dict[str, Any]:
    """The update that makes the best of the readings the answer, and offers others. The first is the present answer."""
    own, ranked = readings[0], sorted(readings, key=lambda one: -one.worth)
    margin = toolbox.verifier.margin if toolbox.verifier else SURER
    best = ranked[0] if ranked[0].worth > own.worth + margin else own
    left = [own] * (best is not own) + [one for one in ranked if one is not own and one is not best]
    offered = [one.offered(toolbox.database.dialect) for one in left[:OFFERED]]
    judgement = best.judgement | {"alternatives": offered, "votes": best.votes}
    if best is own:
        return {"judgement": judgement}
    toolbox.keep(best.result)
    names = ("sql", "candidate", "plan", "log_probs", "preview", "attempts")
    return {name: best.state[name] for name in names} | {"judgement": judgement}  # type: ignore[literal-required]


def _readings(state: State, judgement: Judgement, toolbox: Toolbox) -> tuple[list[Reading], list[Step]]:
    """The present answer, then readings from other plans, each with other rows; and what that cost."""
    calls = dict(toolbox.calls)  # what the page shows and races stays the answer's own
    try:
        return _new_readings(state, judgement, toolbox)
    finally:
        toolbox.calls.update(calls)


def _new_readings(state: State, judgement: Judgement, toolbox: Toolbox) -> tuple[list[Reading], list[Step]]:
    drawn, steps = other_plans(state, toolbox)
    own_votes = sum(plan["drawn"] for plan in drawn if plan["text"] == state["plan"])
    own = Reading(state, cast("Result", toolbox.result), judgement, own_votes)
    readings: dict[object, Reading] = {fingerprint(own.result, ordered=False): own}
    new = [plan for plan in drawn if plan["text"] != state["plan"]]
    if new:
        first, *more = (slots(state | {"plan": plan["text"]}, toolbox) for plan in new)
        sqls = ask_model(toolbox, "generate", first, beside=more, aside=True, attempt=1)
        steps.append(sqls.step)
        as_if = cast("State", state | written(state, toolbox, sqls))
        for candidate, text in zip(candidates_of(state, toolbox, sqls, new), sqls.texts, strict=True):
            if isinstance(candidate.outcome, Result):
                known = fingerprint(candidate.outcome, ordered=False)
                found = readings.get(known) or _reading(as_if, candidate, toolbox.profile.read_sql(text), toolbox)
                readings[known] = replace(found, votes=found.votes + candidate.drawn)
    return list(readings.values()), steps


def _reading(state: State, candidate: Candidate, written_sql: str, toolbox: Toolbox) -> Reading:
    """The candidate as if it were the answer. `written_sql`: as the model wrote it, before repair."""
    result, sql = cast("Result", candidate.outcome), candidate.sql
    attempt = Attempt(sql=sql, repaired=sql != translated(toolbox, written_sql), error=None, row_count=len(result.rows))
    as_if = state | {
        "sql": sql,
        "candidate": written_sql,
        "plan": candidate.plan,
        "preview": preview_of(result, toolbox.options.preview_rows),
        "attempts": [*state["attempts"], attempt],
    }
    return Reading(as_if, result, judge(as_if, toolbox.database.schema(), toolbox.calibration), 0)
