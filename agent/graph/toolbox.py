"""What the nodes work with besides the state: database, model, options. One per conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from agent.graph.stop_signal import StopSignal
from agent.observe.audit import Trail
from agent.observe.node_table import NODES
from agent.observe.step_record import PlainTime
from agent.prompts.knowledge import Knowledge
from agent.prompts.profiles import Profile
from decoding.engine.recall import Recall
from tools.databases.database import Database
from tools.result import Limits, Result


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """max_attempts: SQL statements tried per question, repairs not counted. samples: SQL candidates that vote.

    race: decode every step plainly as well, so that the plain time is measured and not estimated.
    constrain: let the model write nothing but SQL over the schema, where the profile's answers are SQL alone.
    foretell: let drafts copy from texts that plan and links foretell; it changes speed alone.
    schema_budget: most columns that a prompt shows; larger schemas are cut to the linked tables.
    values, hints, repair: show the cell values that the question names; show the links, and cut large schemas to them; mend
    SQL by rules before the model is asked again. Off, they tell what each is worth.
    adapt: change the former SQL by rule, and write a follow-up out as a whole question, where that is sure.
    node_options: the options of nodes that extensions added, by the node's name.
    clarify: end with an `unclear` event where a question without evidence leaves open what it means; for askers who can choose.
    """

    max_attempts: int = 3
    samples: int = 1
    vote_temperature: float = 0.7
    refine_empty: bool = True
    schema_budget: int = 200
    preview_rows: int = 5
    seed: int = 0
    race: bool = False
    constrain: bool = True
    foretell: bool = True
    values: bool = True
    hints: bool = True
    repair: bool = True
    adapt: bool = True
    clarify: bool = False
    knowledge: Knowledge = field(default_factory=Knowledge)
    node_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """What a model was asked in a step: enough to ask it again."""

    messages: tuple[BaseMessage, ...]
    options: Mapping[str, Any]


@dataclass(slots=True)
class Toolbox:
    database: Database
    model: BaseChatModel
    profile: Profile
    options: AgentOptions = field(default_factory=AgentOptions)
    limits: Limits = field(default_factory=Limits)
    recall: Recall = field(default_factory=Recall)
    estimate_plain: PlainTime | None = None
    stop: StopSignal = field(default_factory=StopSignal)  # set by the asker, looked at by all who work on the answer
    calls: dict[str, Call] = field(default_factory=dict)  # the newest call of each step
    result: Result | None = None  # of the SQL that stands; written by the execute node
    trail: Trail | None = None  # to the log of who asked what

    def node_options(self, name: str) -> dict[str, Any]:
        """The options of a node from elsewhere, with their defaults."""
        return {**NODES[name].options, **self.options.node_options.get(name, {})}

    def keep(self, result: Result | None) -> None:
        """Hold the newest result, whole."""
        self.result = result

    def remember(self, tokens: Sequence[int]) -> None:
        """Let later drafts copy from a text that was decoded."""
        self.recall.add(tokens)
