"""The nodes of the graph: for each, the function that runs and what people read about it. Imports none of the functions.

A node of the project is a function in `agent/graph/` and a line in `NODES`; an extension adds a node with
`register_node`. The graph, the titles of steps on page and terminal, the notes below them and the options follow from
this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.observe.node_notes import (
    Note,
    check_notes,
    clarify_notes,
    execute_notes,
    link_notes,
    plan_notes,
    relate_notes,
    written_notes,
)

Notes = Callable[[Mapping[str, Any]], list[Note]]
"""A node's update of the state -> the notes that people read about it."""


class UnknownNode(ValueError):
    """There is no such node, or it has no such option; the message lists what there is."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph.

    run: "module:function" of a function that takes a `State` and a `Runtime[Toolbox]`, and returns an update of the state, or
    a langgraph `Command` that also names the next node. It is imported when a graph is built.
    title: what it does, in words for people. notes: makes the notes that people read about its update.
    before: for an extension's node, the node that it comes before; all transitions to that node then lead through it.
    options: its own options with their defaults, which it reads with `Toolbox.node_options`.
    """

    run: str
    title: str
    notes: Notes = lambda update: []
    before: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


_NODES = "agent.graph.nodes"

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
    "doubt": Node("agent.graph.doubt.doubt_node:doubt", "Looking for other readings"),
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
