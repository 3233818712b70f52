"""Nodes of the graph that raise once, for tests of what is left of a question then."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from agent.observe.step_record import NODES


@contextmanager
def planted_node(name: str, error: BaseException) -> Iterator[None]:
    """In graphs that are built within, the node raises when it is first run, and then does what it should."""
    known = NODES[name]
    really, left = resolve_name(known.run), [error]

    def run(state: Any, runtime: Any) -> Any:
        if left:
            raise left.pop()
        return really(state, runtime)

    place = f"run_{name}_{id(left)}"  # graphs are kept by the places of their nodes
    globals()[place] = run
    NODES[name] = replace(known, run=f"{__name__}:{place}")
    try:
        yield
    finally:
        NODES[name] = known
        del globals()[place]
