"""What `ask` does without: torch, transformers, triton and gradio take longer to load than the answer takes to decode, and they
are not installed with the core, whose 460 MB they would make 2.3 GB.

It does without LangSmith's client, too, and code that asks for the client gets it.
"""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from app.shared import process
from decoding.checkpoints.cache_folder import cache_root
from decoding.checkpoints.embedded import BASE_SHA256, embedded_gguf, ensure_embedded
from decoding.checkpoints.identity import recorded
from decoding.errors import pip_install
from kernels.available import has_gpu, runs_cpu_kernels

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import atexit, sys
from importlib.machinery import PathFinder

absent = set(sys.argv.pop(1).split())
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in absent else found(name, *rest)

from app.cli import main

atexit.register(lambda: print("imported:", sorted({"torch", "transformers", "triton", "gradio"} & set(sys.modules))))
sys.argv[0] = "sqlagent"
main()
"""
EXTRAS = "torch transformers triton gradio"


def without(*arguments: str, absent: str = EXTRAS, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`sqlagent` in a fresh process that does not find these packages; its last line tells which of them it imported."""
    command = [sys.executable, "-c", WITHOUT, absent, *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which the embedded model is fetched and neither converted nor packed."""
    ensure_embedded()
    folder = tmp_path_factory.mktemp("home")
    (folder / "models").mkdir()
    (folder / "models" / embedded_gguf().name).symlink_to(embedded_gguf())
    (folder / "kernels").symlink_to(cache_root() / "kernels")
    return folder


@pytest.mark.skipif(not runs_cpu_kernels(), reason="the processor does not run our kernels")
def test_the_embedded_model_is_converted_packed_and_asked_without_torch(singers: Path, home: Path) -> None:
    done = without("ask", "How many singers are there?", "--db", str(singers), "--sql-only", SQLAGENT_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert "select" in done.stdout.lower()
    converted = recorded(home / "models" / "SmolLM2-135M-Instruct")
    assert converted is not None and converted.base_sha256 == BASE_SHA256
    assert [folder.name for folder in (home / "packed").iterdir()]


@pytest.mark.skipif(not runs_cpu_kernels() or has_gpu(), reason="torch computes here, or our kernels do not run")
def test_ask_imports_no_extra_where_they_are_installed(singers: Path, home: Path) -> None:
    asked = ("ask", "How many singers are there?", "--db", str(singers), "--sql-only")
    done = without(*asked, absent="", SQLAGENT_HOME=str(home))
    assert done.returncode == 0 and done.stdout.endswith("imported: []\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "How many?", "--dtype", "fp32"),
        ("ask", "How many?", "--decoder", "medusa"),
        ("bench", "--data", ".", "--out", "nowhere"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(arguments: tuple[str, ...]) -> None:
    done = without(*arguments)
    told = f"sqlagent: this needs the package torch; install it with: {pip_install('models')}\n"
    assert (done.returncode, done.stderr[-len(told) :]) == (6, told)
    assert "Traceback" not in done.stderr


def test_doctor_and_models_work_without_extras() -> None:
    done = without("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert '"medusa": "this needs the package torch"' in done.stdout
    listed = without("--help", absent=f"{EXTRAS} starlette uvicorn mcp")
    assert listed.returncode == 0 and "Laboratory" in listed.stdout, "a list of commands once imported what they need"
    shown = without("models", "show", "embedded", "--json")
    assert shown.returncode == 0 and BASE_SHA256 in shown.stdout, shown.stderr


def test_a_command_with_torch_and_duckdb_ends_quietly() -> None:
    """Their bindings once printed 60 lines of "leaked" functions at the end, after the last word of the command."""
    code = "import sys, duckdb, torch; sys.argv = ['sqlagent', 'data', 'build', '--help']; from app.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Usage" in done.stdout and not done.stderr
    failed = subprocess.run(
        [sys.executable, "-c", code.replace("--help", "--nothing")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 2 and "leak" not in failed.stderr


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
