"""The node that says how sure an answer is and, where it is doubtful and the asker wants it, looks for other readings."""

from typing import Literal, cast

from langgraph.types import Command

from agent.graph.ask_model import ask_model
from agent.graph.doubt.judge import OtherReading, judge
from agent.graph.nodes import Tools, begin, candidates_of, preview_of, recorded, slots, written
from agent.graph.toolbox import Toolbox
from agent.graph.vote import Candidate, drawn_plans, fingerprint
from agent.observe.step_record import Step
from agent.state import State
from tools.result import Result
from tools.sql.in_words import in_words

SAMPLES, TEMPERATURE, SHOWN = 4, 0.8, 2


def doubt(state: State, runtime: Tools) -> Command[Literal["answer"]]:
    """Judge the SQL that ran. Nothing is judged where a person wrote or chose it."""
    toolbox = runtime.context
    if state["preview"] is None or state["example"] or state["chosen"] or not toolbox.options.confidence:
        return Command(goto="answer")
    judgement = judge(state, toolbox.database.schema(), toolbox.calibration)
    if not (judgement["probably_wrong"] and toolbox.options.second_look):
        return Command(update={"judgement": judgement}, goto="answer")
    (first, *others), steps = _readings(state, runtime)
    shown = sorted(others, key=lambda other: -other["confidence"])[:SHOWN]
    judgement |= {"alternatives": shown, "votes": first["votes"]}
    return Command(update={"judgement": judgement} | recorded(state, runtime, *steps), goto="answer")


def _readings(state: State, runtime: Tools) -> tuple[list[OtherReading], list[Step]]:
    """The answer's own reading, and others from sampled plans, each with other rows; and what that cost."""
    toolbox = runtime.context
    begin(runtime, "doubt")
    calls = dict(toolbox.calls)  # what the page shows and races stays the answer's own
    prompt = slots(state | {"plan": ""}, toolbox)
    plans = ask_model(toolbox, "plan", prompt, samples=SAMPLES, temperature=TEMPERATURE, attempt=1)
    texts = [toolbox.profile.read_plan(text) for text in plans.texts]
    drawn = drawn_plans(texts, plans.log_likelihoods, state["reading"])
    new, steps = [plan for plan in drawn if plan["text"] != state["plan"]], [plans.step]
    own = OtherReading(sql=state["sql"], words="", confidence=0.0, votes=texts.count(state["plan"]))
    readings: dict[object, OtherReading] = {fingerprint(cast("Result", toolbox.result), ordered=False): own}
    if new:
        first, *more = (slots(state | {"plan": plan["text"]}, toolbox) for plan in new)
        sqls = ask_model(toolbox, "generate", first, beside=more, attempt=1)
        steps.append(sqls.step)
        known = dict(zip(texts, map(list, plans.log_probs), strict=True))
        as_if = state | {"log_probs": known | written(state, toolbox, sqls)["log_probs"], "attempts": []}
        for candidate, text in zip(candidates_of(state, toolbox, sqls, new), sqls.texts, strict=True):
            if isinstance(candidate.outcome, Result):
                sql = toolbox.profile.read_sql(text)
                found = readings.setdefault(
                    fingerprint(candidate.outcome, ordered=False),
                    _other(as_if | {"candidate": sql}, candidate, toolbox),
                )
                found["votes"] += candidate.drawn
    toolbox.calls.update(calls)
    return list(readings.values()), steps


def _other(state: State, candidate: Candidate, toolbox: Toolbox) -> OtherReading:
    """The candidate as another reading, judged as if it were the answer."""
    result, dialect = cast("Result", candidate.outcome), toolbox.database.dialect
    preview = preview_of(result, toolbox.options.preview_rows)
    as_if = state | {"sql": candidate.sql, "plan": candidate.plan, "preview": preview}
    confidence = judge(as_if, toolbox.database.schema(), toolbox.calibration)["confidence"]
    return OtherReading(
        sql=candidate.sql, words=in_words(candidate.sql, dialect), confidence=confidence or 0.0, votes=0
    )
