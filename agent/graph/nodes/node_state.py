"""What all nodes share: what they read from the state, and what they record in it."""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from langgraph.runtime import Runtime

from agent.graph.nodes.model_dialect import as_written, model_dialect
from agent.graph.prompt_slots import prompt_slots, tries_of
from agent.graph.readings import asked, history
from agent.graph.toolbox import Toolbox
from agent.observe.events import Finished, Started
from agent.observe.step_record import Step
from agent.prompts.slots import Slots
from agent.state import State
from tools.databases.reading.choices import with_choices
from tools.linking.link_schema import Link
from tools.linking.match_values import ValueMatch
from tools.schema import Schema

Tools = Runtime[Toolbox]


def slots(state: State, toolbox: Toolbox) -> Slots:
    """The prompt's slots from the state."""
    dialect, examples = model_dialect(toolbox), toolbox.options.knowledge.similar(state["question"])
    return prompt_slots(
        asked(state),
        replace(shown_schema(toolbox), dialect=dialect),
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


def shown_schema(toolbox: Toolbox) -> Schema:
    """The schema, with the values of columns that have few, if prompts may show values and the profile's do."""
    schema = toolbox.database.schema()
    wanted = toolbox.options.values and toolbox.profile.shows_choices
    return with_choices(schema, toolbox.database) if wanted else schema


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
