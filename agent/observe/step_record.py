"""The table of the graph's nodes, and the record of what each step did and cost.

`NODES` has for each node the function that runs, its title, and the notes that people read, which are made from the node's
update of the state. It imports none of the functions. A node of the project is a function in `agent/nodes/` and a line in
`NODES`; an extension adds a node with `register_node`. The graph, the titles of steps on page and terminal, the notes below
them and the options follow from this table.

A step record has tokens, forwards, time, and the time that plain decoding would have taken; totals over several steps say what
fast decoding saved.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from agent.state import proposed
from decoding.engine.rounds import Round, measure

PlainSource = Literal["measured", "estimated", "same"]
PlainTime = Callable[[Sequence[Round], int], float]  # (rounds, prompt tokens) -> plain decoding's milliseconds


class Written(Protocol):
    """A text that a model wrote: a `decoding.serving.text_decoder.Completion`, or what an endpoint tells of one."""

    @property
    def text(self) -> str: ...

    @property
    def rounds(self) -> tuple[Round, ...]: ...

    @property
    def log_probs(self) -> tuple[float, ...]: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...

    @property
    def new_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `plain_ms`: the time that it would take with plain decoding; `plain_ms_source`: how that is known.

    "same": the step decodes nothing, or decodes plainly. "estimated": from plain decoding timed on this machine.
    "measured": the step was also decoded plainly. Steps without a model have decoder None and no tokens.
    """

    name: str
    wall_ms: float
    plain_ms: float | None
    plain_ms_source: PlainSource | None
    decoder: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    target_forwards: int = 0
    plain_forwards: int = 0  # what plain decoding takes for the same text under the same grammar
    tokens_per_forward: float | None = None
    forced_tokens: int = 0
    detail: str = ""  # the outcome in one line

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tool_step(name: str, wall_ms: float, detail: str = "") -> Step:
    return Step(name, wall_ms, wall_ms, "same", detail=detail)


def model_step(
    name: str,
    written: Sequence[Written],
    decoder: str | None,
    wall_ms: float,
    plain_time: PlainTime | None,
    measured: bool = False,
) -> Step:
    """The record of one model call, which gave one text or several that were decoded together."""
    per_text = [each.rounds for each in written]
    rounds = [r for each in per_text for r in each]
    metrics = measure(rounds)
    prompt_tokens = written[0].prompt_tokens
    plain_ms, source = _plain(decoder, per_text, wall_ms, prompt_tokens, plain_time, measured)
    return Step(
        name=name,
        wall_ms=wall_ms,
        plain_ms=plain_ms,
        plain_ms_source=source,
        decoder=decoder,
        prompt_tokens=prompt_tokens,
        cached_tokens=written[0].cached_tokens,
        new_tokens=sum(each.new_tokens for each in written),
        target_forwards=metrics.target_forwards,
        plain_forwards=metrics.plain_forwards,
        tokens_per_forward=metrics.tokens_per_forward if rounds else None,
        forced_tokens=metrics.forced_tokens,
    )


def _plain(
    decoder: str | None,
    per_text: Sequence[Sequence[Round]],
    wall_ms: float,
    prompt_tokens: int,
    plain_time: PlainTime | None,
    measured: bool,
) -> tuple[float | None, PlainSource | None]:
    if decoder == "plain":
        return wall_ms, "same"
    if plain_time is None or not any(per_text):
        return None, None
    decoding_ms = measure([r for rounds in per_text for r in rounds]).wall_ms
    around_ms = wall_ms - decoding_ms  # tokenising and the like: the same under every decoder
    longest = max(plain_time(rounds, prompt_tokens) for rounds in per_text if rounds)
    return longest + max(around_ms, 0.0), "measured" if measured else "estimated"


@dataclass(frozen=True, slots=True)
class Savings:
    """Sums over the steps that a model decoded; times in milliseconds. `plain_ms` is None unless known for every step.

    `source` says how plain decoding's time is known: "measured", "estimated", "same", or several of them.
    """

    new_tokens: int
    target_forwards: int
    plain_forwards: int  # what plain decoding takes for the same texts under the same grammar
    prompt_tokens: int
    cached_tokens: int
    wall_ms: float
    plain_ms: float | None
    source: str

    @property
    def fewer_forwards(self) -> float | None:
        """As `decoding.engine.rounds` defines it: tokens that the grammar forces do not count."""
        return self.plain_forwards / self.target_forwards if self.target_forwards else None

    @property
    def speedup(self) -> float | None:
        return self.plain_ms / self.wall_ms if self.plain_ms is not None and self.wall_ms else None


def savings(steps: Iterable[Mapping[str, Any]]) -> Savings:
    """Totals of `agent.observe.step_record.Step` records as dicts; steps without a model add their time only."""
    steps = list(steps)
    plain = [step["plain_ms"] for step in steps]
    sources = {step["plain_ms_source"] for step in steps if step["decoder"]} - {None}
    return Savings(
        new_tokens=sum(step["new_tokens"] for step in steps),
        target_forwards=sum(step["target_forwards"] for step in steps),
        plain_forwards=sum(step["plain_forwards"] for step in steps),
        prompt_tokens=sum(step["prompt_tokens"] for step in steps),
        cached_tokens=sum(step["cached_tokens"] for step in steps),
        wall_ms=sum(step["wall_ms"] for step in steps),
        plain_ms=None if None in plain else sum(plain),
        source=" and ".join(sorted(sources)),
    )


MOST_LINES = 12


@dataclass(frozen=True, slots=True)
class Note:
    """A labelled text; `language` is its name for syntax highlighting, or empty."""

    label: str
    text: str
    language: str = ""


def link_notes(update: Mapping[str, Any]) -> list[Note]:
    links = [_name(link) for link in update.get("links", [])]
    values = [f"{_name(value)} = {value['value']!r}" for value in update.get("values", [])]
    return [Note("tables and columns that the question may mean", _lines(links)), Note("values found", _lines(values))]


def relate_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("read as", str(update.get("resolved", "")))]


def clarify_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("the question may mean", _lines(list(update.get("unclear", {}))))]


def plan_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("plan", str(update.get("plan", "")))]


def written_notes(update: Mapping[str, Any]) -> list[Note]:
    candidate = update.get("candidate") or proposed("")
    text = candidate["written"]["text"] if candidate["written"] else candidate["sql"]
    return [Note("SQL", text, "sql"), *_trouble(update)]


def check_notes(update: Mapping[str, Any]) -> list[Note]:
    candidate = update.get("candidate") or proposed("")
    return [Note("SQL that will run", candidate["sql"], "sql"), *_trouble(update)]


def execute_notes(update: Mapping[str, Any]) -> list[Note]:
    preview = update.get("preview")
    ran = update["attempts"][-1]["sql"] if update.get("attempts") else ""
    rows = f"{preview['row_count']:,} rows: {', '.join(preview['columns'])}" if preview else ""
    return [Note("ran", ran, "sql"), Note("result", rows), *_trouble(update)]


def _trouble(update: Mapping[str, Any]) -> list[Note]:
    error = update["attempts"][-1]["error"] if update.get("attempts") else None
    if not error:
        return []
    candidates = ", ".join(error.get("candidates") or ())
    return [Note("error", error["message"]), Note("there is", candidates)]


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['table']}.{found['column']}" if found.get("column") else str(found["table"])


def _lines(texts: list[str]) -> str:
    unique = list(dict.fromkeys(texts))
    more = [f"and {len(unique) - MOST_LINES} more"] if len(unique) > MOST_LINES else []
    return "\n".join([*unique[:MOST_LINES], *more])


Notes = Callable[[Mapping[str, Any]], list[Note]]
"""A node's update of the state -> the notes that people read about it."""


class UnknownNode(ValueError):
    """There is no such node, or it has no such option; the message lists what there is."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph.

    run: "module:function" of a function that takes a `State` and a `Runtime[AgentContext]`, and returns an update of the
    state, or a langgraph `Command` that also names the next node. It is imported when a graph is built.
    title: what it does, in words for people. notes: makes the notes that people read about its update.
    before: for an extension's node, the node that it comes before; all transitions to that node then lead through it.
    options: its own options with their defaults, which it reads with `AgentContext.node_options`.
    """

    run: str
    title: str
    notes: Notes = lambda update: []
    before: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


_NODES = "agent.nodes"

NODES: dict[str, Node] = {
    "relate": Node(f"{_NODES}.follow_ups:relate", "Reading the question in its conversation", relate_notes),
    "link": Node(f"{_NODES}.link:link_schema", "Looking at the schema", link_notes),
    "adapt": Node(f"{_NODES}.follow_ups:adapt", "Changing the former SQL", written_notes),
    "clarify": Node(f"{_NODES}.link:clarify", "Looking for what is unclear", clarify_notes),
    "plan": Node(f"{_NODES}.write:plan", "Planning", plan_notes),
    "generate": Node(f"{_NODES}.write:generate", "Writing SQL", written_notes),
    "check": Node(f"{_NODES}.answer:check", "Checking the SQL", check_notes),
    "execute": Node(f"{_NODES}.answer:execute", "Running the query", execute_notes),
    "refine": Node(f"{_NODES}.write:refine", "Correcting the SQL", written_notes),
    "vary": Node(f"{_NODES}.follow_ups:vary", "Looking for another query", check_notes),
    "doubt": Node(f"{_NODES}.assess:doubt", "Looking for other readings"),
    "escalate": Node(f"{_NODES}.write:escalate", "Asking the larger model", written_notes),
    "answer": Node(f"{_NODES}.answer:answer", "Answering"),
}


def register_node(name: str, node: Node) -> None:
    """Add a node to every graph that is built from now on, directly before the node `node.before`.

    Several nodes before the same one run in the order of registration. Raises ValueError for a name that is not an
    identifier or is taken, and for a `before` that is not a node of the project.
    """
    if not name.isidentifier() or name in NODES:
        raise ValueError(f"a node cannot be called {name!r}: choose a new name of letters, digits and _")
    own = [each for each, known in NODES.items() if not known.before]
    if node.before not in own:
        raise ValueError(f"the node {name} is to stand before {node.before!r}; choose one of: {', '.join(own)}")
    NODES[name] = node


def notes_of(name: str, update: Mapping[str, Any]) -> tuple[Note, ...]:
    """The notes about one node's update; none for nodes without notes."""
    told = NODES[name].notes(update) if name in NODES else []
    return tuple(note for note in told if note.text)


def check_option(name: str, option: str) -> None:
    """Raise UnknownNode unless there is a node `name` with that option."""
    have = [f"{node}.{each}" for node, known in NODES.items() for each in known.options]
    if f"{name}.{option}" not in have:
        raise UnknownNode(f"no node has the option {name}.{option}; there is: {', '.join(have) or 'none'}")


_WITHIN_NODES = {
    "choose": "Choosing a reading",
    "verify": "Comparing the readings",
}


def step_title(step: str) -> str:
    """The title of a step; for a step without one, its name written like the beginning of a sentence.

    >>> step_title("generate"), step_title("read_samples")
    ('Writing SQL', 'Read samples')
    """
    if step in NODES:
        return NODES[step].title
    return _WITHIN_NODES.get(step, step.replace("_", " ").capitalize())
