"""The wiring of the agent, and nothing else. `agent.observe.step_record` lists the nodes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, wraps
from pkgutil import resolve_name
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from agent.candidates import Tools, begin, recorded, since
from agent.context import AgentContext
from agent.observe.audit import NodeFailed
from agent.observe.step_record import NODES, UnknownNode, tool_step
from agent.state import State
from decoding.serving.model_queue import Stopped

RECURSION_LIMIT = 50  # far above what bounded attempts can reach; a loop is a bug and must fail

Run = Callable[[State, Tools], Any]


def build_graph(checkpointer: BaseCheckpointSaver[Any] | None = None) -> Any:
    """Build the graph relate -> link -> plan -> generate -> check -> execute -> answer.

    Some questions pass through further nodes: clarify comes before plan if the asker can be asked back; adapt before plan if
    a follow-up changes the former SQL in a known way; refine after an error, before the next check; vary if the asker does
    not want the same SQL again. An extension's node comes directly before the node that it names. Raises UnknownNode if a
    node cannot be imported.
    """
    return _compiled(tuple((name, node.run, node.before) for name, node in NODES.items())).copy(
        {"checkpointer": checkpointer}
    )


@cache
def _compiled(nodes: tuple[tuple[str, str, str], ...]) -> Any:
    """The graph of nodes (name, place, node before which it comes), without a checkpointer.

    Compiling takes as long as two forwards of the embedded model, and every question that stands alone would.
    """
    graph = StateGraph(State, context_schema=AgentContext)
    ways = _ways()
    for name, place, before in nodes:
        run: Any = _told_apart(name, _imported(name, place))
        graph.add_node(name, _added(name, run, ways) if before else _led(run, ways) if ways else run)
    graph.add_edge(START, ways.get("relate", "relate"))
    graph.add_edge("answer", END)
    return graph.compile()


def _ways() -> dict[str, str]:
    """Maps a node with added nodes before it to the first of them, and each added node to the node after it."""
    ways: dict[str, str] = {}
    last: dict[str, str] = {}
    for name, node in NODES.items():
        if node.before:
            ways[last.get(node.before, node.before)] = name
            ways[name], last[node.before] = node.before, name
    return ways


def _imported(name: str, place: str) -> Any:
    try:
        return resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownNode(f"the node {name} cannot be imported from {place}: {error}") from error


def _told_apart(name: str, run: Run) -> Run:
    """`run`, whose exceptions come as a NodeFailed with the node's name. Stopped passes: it is no failure."""

    @wraps(run)
    def told_apart(state: State, runtime: Tools) -> Any:
        try:
            return run(state, runtime)
        except Stopped:
            raise
        except Exception as error:
            raise NodeFailed(name) from error

    return told_apart


def _led(run: Run, ways: Mapping[str, str]) -> Any:
    """`run`, with its transitions rerouted through the added nodes."""

    def led(state: State, runtime: Tools) -> Any:
        done = run(state, runtime)
        if not isinstance(done, Command):
            return done
        goto: Any = done.goto
        return replace(done, goto=ways.get(goto, goto))

    return led


def _added(name: str, run: Run, ways: Mapping[str, str]) -> Any:
    """`run` as a step that is shown and recorded, and that goes on to the node after it unless it names another."""

    def added(state: State, runtime: Tools) -> Command[Any]:
        start = begin(runtime, name)
        done = run(state, runtime)
        command = done if isinstance(done, Command) else Command(update=done)
        update = dict(command.update or {})
        if "steps" not in update:
            update |= recorded(state, runtime, tool_step(name, since(start)))
        goto: Any = command.goto or NODES[name].before
        return Command(update=update, goto=ways[name] if goto == NODES[name].before else ways.get(goto, goto))

    return added
