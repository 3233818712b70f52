"""The wiring of the agent; nothing else."""

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph

from agent.graph import follow_up_nodes, nodes
from agent.graph.toolbox import Toolbox
from agent.state import State

RECURSION_LIMIT = 50  # far above what bounded attempts can reach; a loop is a bug and must fail


def build_graph(checkpointer: BaseCheckpointSaver[Any] | None = None) -> Any:
    """relate -> link -> plan -> generate -> check -> execute -> answer.

    Beside these: clarify before plan, where somebody can be asked back; adapt before plan, where a follow-up changes the former
    SQL in one known way; refine between trouble and the next check; vary, where the asker does not want the same SQL again.
    """
    graph = StateGraph(State, context_schema=Toolbox)
    graph.add_node("relate", follow_up_nodes.relate)
    graph.add_node("link", nodes.link_schema)
    graph.add_node("adapt", follow_up_nodes.adapt)
    graph.add_node("clarify", nodes.clarify)
    graph.add_node("plan", nodes.plan)
    graph.add_node("generate", nodes.generate)
    graph.add_node("check", nodes.check)
    graph.add_node("execute", nodes.execute)
    graph.add_node("refine", nodes.refine)
    graph.add_node("vary", follow_up_nodes.vary)
    graph.add_node("answer", nodes.answer)
    graph.add_edge(START, "relate")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=checkpointer)
