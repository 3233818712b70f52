"""How extensions are found: by name, by the environment, as installed packages; and what a broken one is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.shared import exit_codes
from app.shared.process import VARIABLE, load_extensions
from tests.app.shared.extended import TABLES

ROOT = Path(__file__).resolve().parents[3]
NEW_KIND = "from tools.databases.database import DatabaseKind, register_database_kind\n"
NEW_KIND += 'register_database_kind("{name}", DatabaseKind(lambda sources: False, "nowhere:open"))\n'


def sqlagent(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where Python finds the modules of `folder`."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-P", "-c", "from app.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def opened_by(folder: Path, kind: str, *before: str, **environment: str) -> str:
    """What is said of a query with --engine KIND: the kind is known where its opener is looked for."""
    return sqlagent(folder, *before, "sql", "SELECT 1", "--db", "x", "--engine", kind, **environment).stderr


def test_extensions_are_named_or_installed(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        (tmp_path / f"ext_{name}.py").write_text(NEW_KIND.format(name=name))
    package = tmp_path / "some_package-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[sqlagent.extensions]\nthree = ext_three\n")
    before, environment = ("--extension", "ext_one"), {VARIABLE: "ext_two"}
    for kind in ("one", "two", "three"):
        assert "No module named 'nowhere'" in opened_by(tmp_path, kind, *before, **environment)
    assert "is not one of auto" in " ".join(opened_by(tmp_path, "four", *before, **environment).split())


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (None, "(ModuleNotFoundError: No module named 'broken'): install it, or put its folder into PYTHONPATH"),
        (
            "import no_such_module",
            "(ModuleNotFoundError: No module named 'no_such_module'): correct it, or leave it out",
        ),
        ("raise OSError('two\\nlines')", "(OSError: two lines): correct it, or leave it out"),
        (NEW_KIND.format(name="sqlite"), "a kind of database cannot be called 'sqlite'"),
        (
            "from decoding.methods.registry import register_method\nregister_method('plain', 'x:Y')",
            "cannot be called 'plain'",
        ),
        ("from eval.datasets.registry import register_dataset\nregister_dataset('bird', 'x:Y', '')", "called 'bird'"),
        (
            "from agent.observe.step_record import *\nregister_node('n', Node('x:y', 'N', before='z'))",
            "before 'z'; choose",
        ),
    ],
)
def test_a_broken_extension_is_one_line(tmp_path: Path, code: str | None, says: str) -> None:
    if code is not None:
        (tmp_path / "broken.py").write_text(code)
    done = sqlagent(tmp_path, "--extension", "broken", "models", "list")
    assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
    assert done.stderr.count("\n") == 1 and says in done.stderr
    assert done.stderr.startswith("sqlagent: the extension broken cannot be imported (")


def test_help_imports_no_extension(tmp_path: Path) -> None:
    assert sqlagent(tmp_path, "--help", **{VARIABLE: "broken"}).returncode == exit_codes.OK


def test_registering_imports_neither_torch_nor_what_is_registered(tmp_path: Path) -> None:
    """Guards the time that a command takes to start, and tables that need the code of all that they list."""
    code = (
        "import sys, agent.observe.step_record, decoding.methods.registry, eval.datasets.registry, tools.databases.database\n"
        "slow = {'torch', 'langgraph', 'duckdb', 'sqlglot', 'sqlalchemy', 'transformers'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_loading_twice_registers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ext_again.py").write_text(NEW_KIND.format(name="again"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    held = [dict(table) for table in TABLES]
    load_extensions(["ext_again"])
    load_extensions(["ext_again"])
    assert os.environ[VARIABLE] == "ext_again"
    for table, before in zip(TABLES, held, strict=True):
        for name in table.keys() - before.keys():
            del table[name]
