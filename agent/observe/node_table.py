"""The nodes of the graph, and what people read about them.

Describes what the nodes of the graph used and found, in words for people, from their updates of the state.

`agent.observe.node_table` says which function belongs to which node.

The nodes of the graph: for each, the function that runs and what people read about it. Imports none of the functions.

A node of the project is a function in `agent/graph/` and a line in `NODES`; an extension adds a node with
`register_node`. The graph, the titles of steps on page and terminal, the notes below them and the options follow from
this table.

What each step of an answer does, in words for people.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    return [Note("SQL", str(update.get("candidate", "")), "sql"), *_trouble(update)]


def check_notes(update: Mapping[str, Any]) -> list[Note]:
    return [Note("SQL that will run", str(update.get("checked", "")), "sql"), *_trouble(update)]


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
