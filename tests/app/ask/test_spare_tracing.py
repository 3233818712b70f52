"""A question does without LangSmith's client, and code that asks for the client gets it."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

from app.shared import process

ANSWERS = """
import sys
from app.shared.process import spare_tracing
print(spare_tracing())
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict):
    count: int

graph = StateGraph(State).add_node("add", lambda state: {"count": state["count"] + 1})
graph = graph.add_edge(START, "add").add_edge("add", END).compile()
print(graph.invoke({"count": 1})["count"], list(graph.stream({"count": 2})))
print("langsmith.schemas" in sys.modules, "langgraph_sdk.client" in sys.modules)
"""


def python(code: str, **environment: str) -> list[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH_", "LANGCHAIN_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=plain | environment, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_a_graph_runs_without_the_client() -> None:
    assert python(ANSWERS) == ["True", "2 [{'add': {'count': 3}}]", "False False"]


def test_what_is_set_up_to_be_traced_gets_the_client() -> None:
    code = "from app.shared.process import spare_tracing\nprint(spare_tracing())\n"
    code += "from langsmith.client import Client\nprint(Client.__module__)"
    assert python(code, LANGSMITH_PROJECT="mine") == ["False", "langsmith.client"]


def test_other_names_bring_the_real_modules() -> None:
    code = "from app.shared.process import spare_tracing\nspare_tracing()\nimport langgraph.graph\n"
    code += "from langsmith import traceable\nfrom langsmith.utils import LangSmithError\n"
    code += "from langgraph_sdk import get_client\n"
    code += "print(traceable(lambda one: one + 1)(2), LangSmithError.__mro__[1].__name__, callable(get_client))"
    assert python(code) == ["3 Exception True"]


def test_an_imported_client_stays() -> None:
    code = "import langsmith.client as known\nfrom app.shared.process import spare_tracing\n"
    assert python(code + "import sys\nprint(spare_tracing(), sys.modules['langsmith.client'] is known)") == [
        "False True"
    ]


@pytest.mark.parametrize("module", sorted(process._NAMES))
def test_stand_ins_have_names_of_the_real_modules(module: str) -> None:
    assert all(hasattr(import_module(module), name) for name in process._NAMES[module])
