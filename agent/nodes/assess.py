"""The node `doubt`: computes the confidence of an answer and, if it is low, re-ranks it against other plans.

- Features of the answer (`calibration` turns them into a confidence). They are computed without running or asking anything.
- A local model's hidden states for a query: the summary that a `Verifier` reads.
- Sentences that say what is doubtful.
- A plan with an unlikely token is decoded again, from the mean of the logits after several orders of the schema. Such plans are
  wrong four times out of five, and the mean corrects one in twelve of them (log/schema-orders.md). Drafts copy from the first
  plan, so the second costs few forwards.
- Other plans. A model that is sure of a wrong word writes it in nearly every sample. So a local model is asked for the
  likeliest plans that differ from its own at one place, and continues each of them greedily.

If the confidence is low and the user wants it, the node has other plans written, compares their results by the verifier, offers
them, and answers with one that is clearly better.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal, NotRequired, TypedDict, cast

from langgraph.types import Command
from sqlglot import exp

from agent.ask_model import Reply, ask_model, call_of, messages_of
from agent.calibration import Calibration, Vector, Verifier, summary
from agent.candidates import (
    Candidate,
    Tools,
    asked,
    begin,
    candidates_of,
    coverage,
    drawn_plans,
    fingerprint,
    history,
    preview_of,
    recorded,
    same_rows,
    since,
    slots,
)
from agent.context import OTHER_PLANS, AgentContext
from agent.observe.step_record import Step, tool_step
from agent.presentation.done import WhichReading, difference, which_reading
from agent.presentation.shown import in_short
from agent.prompts.slots import Slots
from agent.state import Attempt, DrawnPlan, State
from decoding.serving.text_decoder import other_beginnings, text_states
from tools.linking.link_schema import Link, mentions
from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import keys
from tools.repair.doubt import Sign, signs_of_doubt
from tools.result import Result
from tools.schema import Schema
from tools.sql.scope import column_ref, parse_or_nothing, table_name
from tools.sql.spelling import in_words

Features = dict[str, float]
CERTAIN = 0.003  # keeps the logarithm finite; a token with more than 99.7 % is certain


def signs(state: State, schema: Schema) -> tuple[Sign, ...]:
    """The signs of doubt in the SQL that ran; none if it cannot be read."""
    trees = parse_or_nothing(state["sql"], schema.dialect)
    values = [ValueMatch(**value) for value in state["values"]]
    said = " ".join(
        (*(question for question, _ in history(state)), asked(state))
    )  # a follow-up leaves out what was said
    return signs_of_doubt(trees[0], schema, said, values, _links(state)) if len(trees) == 1 else ()


def features_of(state: State, schema: Schema, seen: Sequence[Sign]) -> Features:
    """The features of the SQL that ran; those that are not known are absent. `seen`: its signs of doubt.

    plan_surprise: how unlikely the model's first plan was, of whose tokens only those count that the grammar left free.
    sql_doubt: how unlikely the SQL's least likely such token was.
    uncovered: the share of what the question names that the SQL does not use. unused_column, weakest_column, weakest_table: the
    scores of the best link that is not used, and of the worst ones that are.
    """
    found: Features = {}
    plan, sql = state["first_plans"].get(state["reading"]), state["candidate"]["written"]
    if plan and plan["log_probs"]:
        found["plan_surprise"] = math.log(CERTAIN - sum(plan["log_probs"]))
    if sql and sql["log_probs"]:
        found["sql_doubt"] = math.log(CERTAIN - min(sql["log_probs"]))
    trees = parse_or_nothing(state["sql"], schema.dialect)
    if len(trees) == 1:
        found |= _of_tree(trees[0], schema, _links(state))
    question = asked(state)
    return found | {
        "strict_signs": float(sum(sign.strict for sign in seen)),
        "other_signs": float(sum(not sign.strict for sign in seen)),
        "empty": float(state["preview"] is None or not state["preview"]["row_count"]),
        "uncovered": 1.0 - coverage(state["sql"], state, mentions(schema, question), schema.dialect),
        "words": float(len(keys(question))),
    }


def _of_tree(tree: exp.Expr, schema: Schema, links: Sequence[Link]) -> Features:
    tables = {table_name(table, schema).casefold() for table in tree.find_all(exp.Table)}
    columns = set(_columns(tree, schema))
    by_table = {link.table.casefold(): link.score for link in links if link.column is None}
    by_column = {(link.table.casefold(), link.column.casefold()): link.score for link in links if link.column}
    return {
        "tables": float(len(tables)),
        "nested": float(len(list(tree.find_all(exp.Select))) > 1),
        "weakest_table": min((by_table.get(table, 0.0) for table in tables), default=0.0),
        "weakest_column": min((by_column.get(column, 0.0) for column in columns), default=0.0),
        "unused_column": max((score for place, score in by_column.items() if place not in columns), default=0.0),
    }


def _columns(tree: exp.Expr, schema: Schema) -> Iterator[tuple[str, str]]:
    """The place of each column outside of joins, in lower case."""
    for column in tree.find_all(exp.Column):
        place = column_ref(column, schema) if column.find_ancestor(exp.Join) is None else None
        if place:
            yield place[0].casefold(), place[1].casefold()


def _links(state: State) -> list[Link]:
    return [Link(**each) for each in state["links"]]


def query_summaries(states: Sequence[State], toolbox: AgentContext, tap: int) -> list[Vector]:
    """The summary of the plan and the SQL that the model wrote, for each of some readings of one question: one forward for all
    of them, which reads them after the prompt of the plan."""
    model = toolbox.local
    assert model, "only the states of a model here are known"
    untried = [slots(State(**{**state, "attempts": []}), toolbox) for state in states]
    prompt = model.prompt(messages_of(toolbox, "plan", untried[0]))
    after_plans = [model.prompt(messages_of(toolbox, "generate", each)) for each in untried]
    written = [state["candidate"]["written"] for state in states]
    sqls = [f" {each['text']}" if each else "" for each in written]
    texts = [after_plan + sql for after_plan, sql in zip(after_plans, sqls, strict=True)]
    found = text_states(model.decoder, prompt, texts, (tap,))
    lengths = [len(model.decoder.tokenizer.encode(sql)) for sql in sqls]
    return [summary(rows[:, 0], length) for rows, length in zip(found, lengths, strict=True)]


GUESSED = math.log(CERTAIN + math.log(4))
"""The doubt of a text with a token that had a chance of one in four."""


class OtherReading(TypedDict):
    """Another query that the question may mean, and what it does in words."""

    sql: str
    words: str
    confidence: float
    votes: int  # how many of the other plans give these rows
    differs: NotRequired[str]  # what it does that the answer's own query does not
    result: NotRequired[str]  # its rows in short


class Judgement(TypedDict):
    """What is known of an answer's worth. confidence: None where the model was not calibrated. features: its reasons.

    probably_wrong: whether the confidence is so low that people are told. alternatives, votes: where others were looked for;
    votes: how many of the plans that were written give the answer's own rows; plans: how many ran. which_reading: the question
    that tells all of them apart best.
    """

    confidence: float | None
    probably_wrong: bool
    doubts: list[str]
    features: Features
    alternatives: NotRequired[list[OtherReading]]
    votes: NotRequired[int]
    plans: NotRequired[int]
    which_reading: NotRequired[WhichReading | None]


def judge(state: State, schema: Schema, calibration: Calibration | None, compared: Features | None = None) -> Judgement:
    """The judgement on the SQL that ran. compared: what is known besides, where several readings were compared."""
    seen = signs(state, schema)
    features = features_of(state, schema, seen) | (compared or {})
    confidence = calibration.confidence(features) if calibration else None
    doubtful = calibration is not None and confidence is not None and confidence < calibration.doubtful_below
    doubts = [sign.sentence for sign in seen] + (_more_doubts(state, features) if doubtful else [])
    return Judgement(confidence=confidence, probably_wrong=doubtful, doubts=doubts, features=features)


def _more_doubts(state: State, features: Features) -> list[str]:
    """What else speaks against an answer that is doubtful in all."""
    found = []
    if features["empty"]:
        found.append("It found no rows.")
    if any(attempt["error"] for attempt in state["attempts"]):
        found.append("The first query failed.")
    if features["uncovered"] > 1 / 2:
        found.append("It uses less than half of what the question names.")
    if features.get("sql_doubt", -math.inf) > GUESSED:
        found.append("The model wavered between several readings.")
    return found


LEAST = -0.92  # natural logarithm of 0.4
MOST_TABLES = 9  # of a schema: with ten tables the mean named tables that no single order leads to


def is_doubtful(toolbox: AgentContext, slots: Slots, reply: Reply) -> bool:
    """Whether a token that no grammar forced has a probability below 0.4. Only a local model's probabilities are known,
    and for a large schema there is no remedy.
    """
    options = toolbox.options
    may = options.orders > 1 and len(slots.schema.tables) <= MOST_TABLES
    return may and toolbox.local is not None and min(reply.log_probs[0], default=0.0) < LEAST


def rewritten(toolbox: AgentContext, slots: Slots) -> Reply:
    """The plan that the model writes after several orders of the schema, from the mean of their logits."""
    reply = ask_model(toolbox, "plan", slots, orders=toolbox.options.orders)
    return replace(
        reply, step=replace(reply.step, detail=f"averaged over {toolbox.options.orders} orders of the schema")
    )


TEMPERATURE = 1.0  # of the samples that are drawn instead where no grammar tells what else a plan may say


def other_plans(state: State, toolbox: AgentContext) -> tuple[list[DrawnPlan], list[Step]]:
    """The plans, of which some may be the state's own, and what they cost. `drawn`: how many texts gave the plan."""
    replies = _left(state, toolbox) or [_sampled(state, toolbox)]
    texts = [toolbox.profile.read_plan(text) for reply in replies for text in reply.texts]
    likelihoods = [each for reply in replies for each in reply.log_likelihoods]
    return drawn_plans(texts, likelihoods, state["reading"]), [reply.step for reply in replies]


def _left(state: State, toolbox: AgentContext) -> list[Reply]:
    """The model's own plan after one order of the schema, and those that leave it; nothing without a grammar."""
    model, prompt = toolbox.local, slots(State(**{**state, "plan": ""}), toolbox)
    if not model:
        return []
    call = call_of(toolbox, "plan", prompt, attempt=0, temperature=None, bound=True, orders=1)
    if call.options["constraint"] is None:
        return []
    own = ask_model(toolbox, "plan", prompt, beginnings=[()], aside=True)
    tokens = [token for each in own.rounds[0] for token in each.text_tokens]
    text, constraint = model.prompt(call.messages), call.options["constraint"]
    ways = other_beginnings(model.decoder, text, tokens, constraint, _count(toolbox))
    return [own, ask_model(toolbox, "plan", prompt, beginnings=ways, aside=True)] if ways else [own]


def _count(toolbox: AgentContext) -> int:
    return toolbox.watch.plans if toolbox.watch else OTHER_PLANS


def _sampled(state: State, toolbox: AgentContext) -> Reply:
    prompt = slots(State(**{**state, "plan": ""}), toolbox)
    return ask_model(toolbox, "plan", prompt, samples=_count(toolbox), temperature=TEMPERATURE, attempt=1)


OFFERED = 2
SURE = 0.9  # of such answers are right: what is less sure goes to the larger model, where the asker names no share
SURER = 0.1  # by how much another reading's confidence must be higher to be the answer, where there is no verifier


@dataclass(frozen=True, slots=True)
class RankedReading:
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

    def offered(self, beside: str, schema: Schema) -> OtherReading:
        """`beside`: the query of the answer to which it is an alternative."""
        sql = self.state["sql"]
        return OtherReading(
            sql=sql,
            words=in_words(sql, schema.dialect),
            confidence=self.confidence,
            votes=self.votes,
            differs=difference(sql, beside, schema),
            result=in_short(self.result),
        )


def doubt(state: State, runtime: Tools) -> Command[Literal["answer", "escalate"]]:
    """Judge the SQL that ran. Nothing is judged where a person wrote or chose it, or a rule that is sure changed the former.
    Where there is a larger model, it is asked next, unless the answer is sure enough.
    """
    toolbox = runtime.context
    by_the_model = bool(state["plan"]) and not (state["example"] or state["chosen"])
    if by_the_model and state["preview"] is None and toolbox.larger:
        return Command(goto="escalate")
    if state["preview"] is None or not by_the_model or not toolbox.options.confidence:
        return Command(goto="answer")
    judging = partial(judge, state, toolbox.database.schema(), toolbox.calibration)
    judgement = toolbox.optional("confidence", judging, None)
    update: dict[str, Any] = {"judgement": judgement, "sql": state["sql"]}
    if judgement is not None and _is_doubtful(judgement, toolbox):
        begin(runtime, "doubt")
        own = toolbox.result
        readings = toolbox.optional("readings", partial(_second_look, state, judgement, runtime), None)
        if readings is None:
            toolbox.keep(own)
        update |= readings or {}
    if toolbox.larger and not _sure_enough(update["judgement"], toolbox):
        return Command(update=update, goto="escalate")
    return Command(update=unless_sure(update, toolbox), goto="answer")


def unless_sure(update: dict[str, Any], toolbox: AgentContext) -> dict[str, Any]:
    """The update, which does not give the answer but offers it as a reading where it is not as sure as the asker wants."""
    at_least, judgement = toolbox.options.at_least, cast("Judgement | None", update.get("judgement"))
    if not at_least or _sure_enough(judgement, toolbox):
        return update
    confidence = judgement["confidence"] if judgement else None
    known = "how often answers like this one are right is not known"
    if confidence is not None:
        known = f"of answers like this one {confidence:.0%} are right"
    unsure = f"I am not sure enough: {known}, and you want {at_least:.0%}."
    if judgement is None:
        return update | {"unsure": unsure}
    sql = update["sql"]
    own = OtherReading(
        sql=sql,
        words=in_words(sql, toolbox.database.dialect),
        confidence=confidence or 0.0,
        votes=judgement.get("votes", 0),
    )
    offered = judgement | {"alternatives": [own, *judgement.get("alternatives", ())]}
    return update | {"unsure": unsure, "judgement": offered}


def superseded(state: State, toolbox: AgentContext, sql: str, result: Result) -> Judgement:
    """The judgement on a larger model's SQL and its result: nothing is known of it. The answer that it replaces is offered as
    another reading, if it has other rows."""
    own, judgement, offered = toolbox.result, cast("Judgement | None", state["judgement"]), list[OtherReading]()
    if own and judgement and not same_rows(own, result):
        replaced = RankedReading(state, own, judgement, judgement.get("votes", 0))
        offered = [replaced.offered(sql, toolbox.database.schema()), *judgement.get("alternatives", ())][:OFFERED]
    return Judgement(confidence=None, probably_wrong=False, doubts=[], features={}, alternatives=offered)


def _sure_enough(judgement: Judgement | None, toolbox: AgentContext) -> bool:
    """Whether answers of this confidence are right as often as the asker wants, or as is asked of a small model."""
    share = toolbox.options.at_least or SURE
    least = toolbox.calibration.least_confidence(share) if toolbox.calibration else None
    confidence = judgement["confidence"] if judgement else None
    return least is not None and confidence is not None and confidence >= least


def _second_look(state: State, judgement: Judgement, runtime: Tools) -> dict[str, Any]:
    """The update that answers with the best reading."""
    toolbox = runtime.context
    readings, steps = _readings(state, judgement, toolbox)
    if toolbox.watch:
        toolbox.watch.tell(readings)
    compared, comparing = _compared(readings, toolbox)
    return _best(compared, toolbox) | recorded(state, runtime, *steps, *comparing)


def _is_doubtful(judgement: Judgement, toolbox: AgentContext) -> bool:
    """Whether other readings are looked for."""
    confidence, verifier = judgement["confidence"], toolbox.verifier
    if toolbox.watch:
        return confidence is None or confidence < toolbox.watch.below
    low = confidence is not None and verifier is not None and confidence < verifier.look_below
    unsure = bool(toolbox.options.at_least) and not _sure_enough(judgement, toolbox)
    return unsure or (toolbox.options.rerank and (low or judgement["probably_wrong"]))


def _compared(readings: Sequence[RankedReading], toolbox: AgentContext) -> tuple[list[RankedReading], list[Step]]:
    """The readings with their worth, by the verifier or, without one, by the confidence; and the step that found it out."""
    verifier = toolbox.verifier
    if verifier is None:
        return [replace(one, worth=one.confidence) for one in readings], []
    start = perf_counter()
    summaries = query_summaries([one.state for one in readings], toolbox, verifier.tap)
    made = [_judged_by(verifier, each, one, toolbox) for each, one in zip(summaries, readings, strict=True)]
    return made, [tool_step("verify", since(start), f"{len(readings)} reading" + "s" * (len(readings) > 1))]


def _judged_by(verifier: Verifier, summary: Vector, reading: RankedReading, toolbox: AgentContext) -> RankedReading:
    """The reading with its worth and, where it is known how often such readings are right, a confidence by what tells."""
    known, judgement = verifier.features(summary, reading.confidence, reading.votes), reading.judgement
    if verifier.calibration:
        judgement = judge(reading.state, toolbox.database.schema(), verifier.calibration, known)
    return replace(reading, worth=verifier.worth(summary, reading.confidence), judgement=judgement)


def _best(readings: Sequence[RankedReading], toolbox: AgentContext) -> dict[str, Any]:
    """The update that makes the best of the readings the answer, and offers others, first those that are options of the
    question which tells all apart. The first is the present answer."""
    own, ranked = readings[0], sorted(readings, key=lambda one: -one.worth)
    margin = toolbox.verifier.margin if toolbox.verifier else SURER
    best = ranked[0] if ranked[0].worth > own.worth + margin else own
    left = [own] * (best is not own) + [one for one in ranked if one is not own and one is not best]
    schema, told = toolbox.database.schema(), [best, *left]
    which = which_reading([(one.state["sql"], in_short(one.result), one.votes) for one in told], schema)
    asked_for = {option["sql"] for option in which["options"]} if which else set()
    left.sort(key=lambda one: one.state["sql"] not in asked_for)
    offered = [one.offered(best.state["sql"], schema) for one in left[:OFFERED]]
    plans = sum(one.votes for one in readings)
    found = {"alternatives": offered, "votes": best.votes, "plans": plans, "which_reading": which}
    judgement = best.judgement | found
    if best is own:
        return {"judgement": judgement}
    toolbox.keep(best.result)
    names = ("sql", "candidate", "plan", "preview", "attempts")
    return {name: best.state[name] for name in names} | {"judgement": judgement}  # type: ignore[literal-required]


def _readings(state: State, judgement: Judgement, toolbox: AgentContext) -> tuple[list[RankedReading], list[Step]]:
    """The present answer, then readings from other plans, each with other rows; and what that cost."""
    calls = dict(toolbox.calls)  # what the page shows and races stays the answer's own
    try:
        return _new_readings(state, judgement, toolbox)
    finally:
        toolbox.calls.update(calls)


def _new_readings(state: State, judgement: Judgement, toolbox: AgentContext) -> tuple[list[RankedReading], list[Step]]:
    drawn, steps = other_plans(state, toolbox)
    own_votes = sum(plan["drawn"] for plan in drawn if plan["text"] == state["plan"])
    own = RankedReading(state, cast("Result", toolbox.result), judgement, own_votes)
    readings: dict[object, RankedReading] = {fingerprint(own.result, ordered=False): own}
    new = [plan for plan in drawn if plan["text"] != state["plan"]]
    if new:
        first, *more = (slots(state | {"plan": plan["text"]}, toolbox) for plan in new)
        sqls = ask_model(toolbox, "generate", first, batch=more, aside=True, attempt=1)
        steps.append(sqls.step)
        for candidate in candidates_of(state, toolbox, sqls, new):
            if isinstance(candidate.outcome, Result):
                known = fingerprint(candidate.outcome, ordered=False)
                found = readings.get(known) or _reading(state, candidate, toolbox)
                readings[known] = replace(found, votes=found.votes + candidate.drawn)
    return list(readings.values()), steps


def _reading(state: State, candidate: Candidate, toolbox: AgentContext) -> RankedReading:
    """The candidate as if it were the answer."""
    result, sql = cast("Result", candidate.outcome), candidate.sql
    attempt = Attempt(sql=sql, repaired=candidate.repaired, error=None, row_count=len(result.rows))
    as_if = state | {
        "sql": sql,
        "candidate": candidate.proposal,
        "plan": candidate.plan,
        "preview": preview_of(result, toolbox.options.preview_rows),
        "attempts": [*state["attempts"], attempt],
    }
    return RankedReading(as_if, result, judge(as_if, toolbox.database.schema(), toolbox.calibration), 0)
