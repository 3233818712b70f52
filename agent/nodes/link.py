"""The nodes that look up what a question is about. They need no model."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any, Literal

from langgraph.types import Command
from sqlglot import exp

from agent.candidates import Tools, asked, begin, recorded, since, values_of
from agent.context import AgentContext
from agent.observe.events import Unclear
from agent.observe.step_record import tool_step
from agent.presentation.sentence import asked_back, meanings_in_words
from agent.small_talk import nothing_about
from agent.state import State
from tools.linking.link_schema import Link, link
from tools.linking.match_values import ValueMatch, match_values
from tools.linking.question_context import QuestionContext
from tools.linking.questions import as_told, find_unclear
from tools.repair.rules import applied, rules_of
from tools.sql.scope import parse_or_nothing


def link_schema(state: State, runtime: Tools) -> Command[Literal["clarify", "adapt", "plan", "check", "__end__"]]:
    """Find the tables, columns and cell values that the question is about, or the stored example that asks the same. Needs no
    model. SQL that the asker has chosen is taken as it is. Whoever asks for nothing that is here is told so.
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
    step = tool_step("link", since(start), f"{_counted(links, 'link')}, {_counted(values, 'value')}")
    update = {"values": [asdict(value) for value in values], "links": [asdict(each) for each in links]}
    if told := _told(state, toolbox, links, values):
        ended = recorded(state, runtime, tool_step("link", since(start), "nothing in the data is about this"))
        return Command(update={"answer": told, "told": True} | ended, goto="__end__")
    leans = state["readings"] == ["follow_up"] and bool(state.get("turns"))
    ask_back = toolbox.options.clarify and not state["evidence"] and not leans
    goto: Literal["clarify", "adapt", "plan"] = "adapt" if leans else "clarify" if ask_back else "plan"
    return Command(update=update | recorded(state, runtime, step), goto=goto)


def _told(state: State, toolbox: AgentContext, links: Sequence[Link], values: Sequence[ValueMatch]) -> str | None:
    """What people are told where a question that stands by itself is about nothing in the data; None where it may be."""
    options, question = toolbox.options, asked(state)
    alone = not state.get("turns") or state["readings"] == ["standalone"]
    helped = state["evidence"] or options.knowledge.about(question) or options.knowledge.similar(question)
    if not (options.present and options.hints and options.values and alone) or helped:
        return None
    return nothing_about(question, toolbox.database.schema(), links, values, toolbox.database.name)


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
    options = dict(zip(meanings_in_words(meanings), (one.evidence for one in meanings), strict=True))
    runtime.stream_writer(Unclear(meanings[0].phrase, options))
    return Command(update=update | {"unclear": options, "answer": asked_back(meanings)}, goto="__end__")


def without_unmeant(state: State, toolbox: AgentContext, sql: str) -> dict[str, Any]:
    """The update of the state without values that the question hardly means, if the SQL after the model's plan compares with
    one of them; nothing otherwise."""
    values, schema, question = values_of(state), toolbox.database.schema(), asked(state)
    if not state["plan"]:
        return {}
    context = QuestionContext(question, values, without=toolbox.options.without_rules)
    kept = applied(rules_of("values", context), values, schema, context)
    dropped = {match.value.casefold() for match in values} - {match.value.casefold() for match in kept}
    literals = (each for tree in parse_or_nothing(sql, schema.dialect) for each in tree.find_all(exp.Literal))
    if not any(each.is_string and each.name.casefold() in dropped for each in literals):
        return {}
    links = link(schema, question, kept) if toolbox.options.hints else ()
    again = {"values": [asdict(value) for value in kept], "links": [asdict(each) for each in links]}
    return again | {"readings": [state["reading"]], "plan": ""}


def _counted(things: Collection[object], noun: str) -> str:
    return f"{len(things)} {noun if len(things) == 1 else noun + 's'}"
