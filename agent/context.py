"""What the nodes use besides the state: database, model, options. There is one toolbox per conversation."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from agent.calibration import Calibration, Verifier
from agent.observe.audit import FAILURE, OPTIONAL_STEPS, Trail, in_one_line, kind_of, logger
from agent.observe.step_record import NODES, PlainTime
from agent.presentation.shown import Shown
from agent.prompts.knowledge import Knowledge
from agent.prompts.profiles import Profile
from decoding.engine.method import LookupCorpus
from decoding.serving.model_queue import Stopped
from decoding.serving.text_decoder import ChatModel
from tools.databases.database import Database
from tools.result import Limits, Result


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Options of the agent.

    max_attempts: SQL statements tried per question, repairs not counted.
    orders: of the schema, from which an unlikely plan is decoded again, by the mean of their logits. 1: never.
    race: decode every step again with plain decoding, so that the plain time is measured, not estimated.
    constrain: let the model write only SQL over the schema, if the profile's answers are only SQL; tell an endpoint the form
    of plans.
    predicted_outputs: let drafts copy text predicted from the plan and the schema links; this changes speed only.
    schema_budget: most columns that a prompt shows; larger schemas are cut to the linked tables.
    values: show the cell values that the question names. hints: show the links, and cut large schemas to them.
    repair: repair SQL by rules before the model is asked again. Ablations switch these three off to measure their worth.
    deadline_s: seconds that a question may take in all; None: no limit.
    confidence: say how sure an answer is, where the model's adapter was calibrated.
    rerank: where an answer is doubtful, sample other readings; answer with one that is clearly better, offer others.
    present: make results explain themselves, with further queries where columns or names are missing.
    adapt: change the former SQL by rule, or rewrite a follow-up as a self-contained question, where a rule is sure.
    without_rules: names of `tools.repair.rules.RULES` that are switched off, to measure what they bring.
    node_options: the options of nodes that extensions added, by the node's name.
    at_least: give only answers of a confidence from which this share is right, and offer readings otherwise; 0: give all.
    clarify: end with an `unclear` event if a question without evidence is ambiguous; for askers who can choose.
    """

    max_attempts: int = 2
    orders: int = 4
    schema_budget: int = 200
    preview_rows: int = 5
    seed: int = 0
    race: bool = False
    constrain: bool = True
    predicted_outputs: bool = True
    values: bool = True
    hints: bool = True
    repair: bool = True
    adapt: bool = True
    confidence: bool = True
    rerank: bool = False
    at_least: float = 0.0
    present: bool = True
    deadline_s: float | None = None
    clarify: bool = False
    without_rules: tuple[str, ...] = ()
    knowledge: Knowledge = field(default_factory=Knowledge)
    node_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class StopSignal:
    """One asker's request to stop. Nodes, the decoder and threads that wait for the model check it."""

    def __init__(self) -> None:
        self._set = threading.Event()

    def stop(self) -> None:
        """Stop the running question."""
        self._set.set()

    def clear(self) -> None:
        """Reset the signal for the next question."""
        self._set.clear()

    def is_set(self) -> bool:
        return self._set.is_set()

    def check(self) -> None:
        """Raise Stopped if the question was stopped."""
        if self.is_set():
            raise Stopped


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model in a step, stored so that it can be repeated. aside: its text is shown to nobody as it comes."""

    messages: tuple[BaseMessage, ...]
    options: Mapping[str, Any]
    aside: bool = False

    @property
    def prompts(self) -> int:
        """How many prompts one of its texts continues."""
        return 1 + len(self.options.get("other_prompts", ()))


WITHOUT_FORM = "without a form of its answer, which the endpoint refused"


@dataclass(slots=True)
class EndpointForms:
    """Whether an endpoint holds answers to a form (`response_format`); shared by all who use it. `tell`: gets one line once it
    has refused one, after which it is asked without for as long as it is connected.
    """

    tell: Callable[[str], None]
    taken: bool = True

    def is_refusal(self, error: Exception, calls: Sequence[Call]) -> bool:
        """Whether an endpoint's error may be due to the form: it calls the request bad, and a form was sent."""
        formed = any("extra_body" in call.options for call in calls)
        return formed and getattr(error, "status_code", None) in (400, 422)

    @contextmanager
    def given_up(self, error: Exception) -> Iterator[None]:
        """Within it, forms are left out; after it too, unless the request fails without one as well."""
        first, self.taken = self.taken, False
        try:
            yield
        except Exception:
            self.taken = first
            raise
        if first:
            self.tell(f"the endpoint takes no response_format: plans are asked for without it ({error})")


OTHER_PLANS = 4  # for a doubtful answer: with ten there are hardly more right ones among them


@dataclass(frozen=True, slots=True)
class ReadingWatch:
    """Gets the readings of every answer that has no confidence or less than `below`, before they are compared.

    plans: how many other plans they are made from.
    """

    tell: Callable[[Sequence[Any]], None]
    below: float = 1.0
    plans: int = OTHER_PLANS


@dataclass(frozen=True, slots=True)
class Larger:
    """A larger model, which answers where the agent's own is not sure enough. name: as people know it."""

    name: str
    model: ChatModel | BaseChatModel
    profile: Profile
    forms: EndpointForms | None = None


@dataclass(slots=True)
class AgentContext:
    database: Database
    model: ChatModel | BaseChatModel  # one that is decoded here, or langchain's of an endpoint
    profile: Profile
    options: AgentOptions = field(default_factory=AgentOptions)
    limits: Limits = field(default_factory=Limits)
    recall: LookupCorpus = field(default_factory=LookupCorpus)
    estimate_plain: PlainTime | None = None
    calibration: Calibration | None = None  # of the model's adapter
    verifier: Verifier | None = None  # of the model's adapter
    watch: ReadingWatch | None = None
    stop: StopSignal = field(default_factory=StopSignal)  # set by the asker, checked while the answer is made
    calls: dict[str, Call] = field(default_factory=dict)  # the newest call of each step
    result: Result | None = None  # of the accepted SQL; written by the execute node
    shown: Shown | None = None  # what people see of the result; written by the answer node
    trail: Trail | None = None  # writes to the audit log
    forms: EndpointForms | None = None  # of an endpoint that may be told them
    larger: Larger | None = None  # gets the questions of whose answers the model is not sure
    left_out: list[str] = field(default_factory=list)  # what an answer lacks because it failed, in sentences

    @property
    def local(self) -> ChatModel | None:
        """The model, if it is decoded here."""
        return self.model if isinstance(self.model, ChatModel) else None

    def with_larger(self, larger: Larger) -> "AgentContext":
        """The same with the larger model, of which no confidence is known."""
        return replace(
            self,
            model=larger.model,
            profile=larger.profile,
            forms=larger.forms,
            larger=None,
            recall=LookupCorpus(),
            estimate_plain=None,
            calibration=None,
            verifier=None,
            calls={},
        )

    def node_options(self, name: str) -> dict[str, Any]:
        """The options of an extension's node, with defaults for those not given."""
        return {**NODES[name].options, **self.options.node_options.get(name, {})}

    def keep(self, result: Result | None) -> None:
        """Keep the newest result with all its rows."""
        self.result, self.shown = result, None

    def begin(self) -> None:
        """A question begins: nothing of the one before is left."""
        self.keep(None)
        self.left_out.clear()

    def optional(self, step: str, run: Callable[[], T], otherwise: T) -> T:
        """What `run` gives; `otherwise` where it fails, which the answer then says. step: one of OPTIONAL_STEPS.

        Stopped passes: it is no failure.
        """
        try:
            return run()
        except Stopped:
            raise
        except Exception as error:
            self.leave_out(f"{OPTIONAL_STEPS[step]} failed and was left out", error)
            return otherwise

    def leave_out(self, what: str, error: Exception) -> None:
        """Note that an answer lacks something because of an error, and write that to the log."""
        said = f"{what[:1].upper()}{what[1:]} ({in_one_line(error)}): {self.write_down(error, 'ask again')}."
        if said not in self.left_out:
            self.left_out.append(said)

    def write_down(self, error: Exception, do: str) -> str:
        """Write to the log what nobody expected, and return what the asker can do: `do`, and then see the log."""
        if kind_of(error) != FAILURE:
            return do
        logger.error("a question met a failure", exc_info=error)
        if self.trail:
            self.trail.failed(self.database.name, error)
        where = "see `sqlagent logs --outcome failure`" if self.trail else "report it"
        return f"{do}, and {where} if it fails again"

    def remember(self, tokens: Sequence[int]) -> None:
        """Add a decoded text to those that later drafts can copy from."""
        self.recall.add(tokens)
