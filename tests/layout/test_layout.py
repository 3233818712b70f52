"""Guards the folders: packages of this repository and no others of their names, and what each folder holds.

`kernels` and `tools` are common names. transformers probes an import named `kernels` when it loads, and crashes on one
that looks like the Hugging Face package without being it. That concerns the repository alone: the wheel holds one package.
"""

import ast
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import grimp
import pytest

from tests.layout.rooms import PACKAGES, rooms

ROOT = Path(__file__).resolve().parents[2]
TOPS = (*PACKAGES, "tests")
LONGEST = 500  # lines of a file
MOST_FILES, MOST_WITH_ONE_IMPORTER, MOST_REACHED = 323, 58, 153
BLAS = {"matmul", "dot", "vdot", "inner", "tensordot"}  # numpy's functions


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_is_this_repositorys(name: str) -> None:
    assert import_module(name).__file__ == str(ROOT / name / "__init__.py")


def test_the_other_kernels_distribution_is_absent() -> None:
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("kernels")


def test_kernels_holds_a_docstring_and_a_version_only() -> None:
    body = ast.parse((ROOT / "kernels" / "__init__.py").read_text()).body
    assert [type(node) for node in body] == [ast.Expr, ast.Assign]
    assert ast.unparse(body[1]) == "__version__ = '0'"


def test_transformers_loads_beside_our_kernels() -> None:
    """In a fresh process: this one has loaded it already."""
    code = "import kernels, transformers; from transformers import AutoModelForCausalLM"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def holds_code(path: Path) -> bool:
    return path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))


def folders() -> list[Path]:
    """Every folder of code."""
    found = [folder for top in TOPS for folder in (ROOT / top, *(ROOT / top).rglob("*")) if folder.is_dir()]
    return [folder for folder in found if holds_code(folder)]


def modules() -> dict[str, int]:
    """The product's and the laboratory's modules, without packages, each with the number of modules that import it."""
    graph = grimp.build_graph(*PACKAGES)
    files = {name for name in graph.modules if (ROOT / f"{name.replace('.', '/')}.py").is_file()}
    return {name: len(graph.find_modules_that_directly_import(name)) for name in files}


def test_files_hold_an_idea() -> None:
    """Ceilings that may only fall: a file that one other imports is often a part of it, and too long a file holds two ideas."""
    found = modules()
    assert len(found) <= MOST_FILES
    assert sum(count == 1 for count in found.values()) <= MOST_WITH_ONE_IMPORTER
    for name in found:
        lines = (ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8").count("\n")
        assert lines <= LONGEST, name


def test_a_question_needs_no_more_modules_than_before() -> None:
    """What `sqlagent ask` imports, directly or not, now or when it is needed; a ceiling that may only fall."""
    graph = grimp.build_graph(*PACKAGES)
    reached = graph.find_upstream_modules("app.ask.ask")
    assert len(reached) <= MOST_REACHED
    assert not {name for name in reached if name.partition(".")[0] in ("eval", "training")}


def test_every_package_says_what_lives_there() -> None:
    for folder in folders():
        if folder.relative_to(ROOT).parts[0] != "tests":
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


@pytest.mark.parametrize("name", PACKAGES)
def test_no_modules_import_one_another_in_a_circle(name: str) -> None:
    assert rooms(name).circles == 0


def test_numpy_multiplies_no_matrices_while_a_text_is_decoded() -> None:
    """Its BLAS has threads of its own, which keep a processor busy for 100 ms after each product (`KernelRotation`)."""
    packages = [ROOT / "decoding" / name for name in ("engine", "methods", "heads/on_kernels")]
    paths = [path for package in packages for path in package.rglob("*.py")]
    paths += [
        *(ROOT / "decoding/targets/int8").glob("cpu_*.py"),
        ROOT / "decoding/checkpoints/mask_adapter.py",
    ]
    assert len(paths) > 30
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            product = isinstance(node, ast.MatMult) or (isinstance(node, ast.Attribute) and node.attr in BLAS)
            assert not product, f"{path}: numpy.einsum or a kernel of ours multiplies without BLAS"
