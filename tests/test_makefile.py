"""Guards the two commands: questions arrive as typed, nothing is installed twice, an old Python is told so."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.ask.ask import DEFAULT_QUESTION

ROOT = Path(__file__).resolve().parent.parent
ECHO = '#!/bin/sh\nfor argument in "$@"; do printf "%s\\0" "$argument"; done\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose environment is ready; its `sqlagent` prints what it is given."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    (bin / "python").symlink_to(sys.executable)
    (bin / "sqlagent").write_text(ECHO)
    (bin / "sqlagent").chmod(0o755)
    for stamp in (".ready", ".ready-train", ".ready-dev"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def make(clone: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """make with stdin open and silent, as in a background shell: a reader of it waits for ever."""
    env = {"PATH": os.environ["PATH"], **environment}
    reading, writing = os.pipe()
    try:
        return subprocess.run(
            ["make", *arguments],
            cwd=clone,
            env=env,
            stdin=reading,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(reading)
        os.close(writing)


def asked(clone: Path, *arguments: str, **environment: str) -> list[str]:
    done = make(clone, "ask", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    "question",
    [
        "Who sold most?",
        'it\'s $5, "cheap" `id` $(shell touch pwned) $HOME ${HOME} 100% #1 \\ ; rm x',
        "two\nlines",
        "--help",
        "日本 🙂",
    ],
)
def test_a_question_arrives_as_it_was_typed(clone: Path, question: str) -> None:
    assert asked(clone, f"Q={question}", "DB=a folder/$x.db") == ["ask", "--db", "a folder/$x.db", "--", question]
    assert asked(clone, Q=question) == ["ask", "--", question]
    assert not (clone / "pwned").exists()


def test_demo_check_asks_the_set_that_is_named(clone: Path) -> None:
    (clone / ".venv" / "bin" / "sqlagent").write_text('#!/bin/sh\necho "$3" >&2\n')
    files = [make(clone, "demo-check", *given).stderr.strip() for given in ((), ("SET=fresh",))]
    assert files == [f"eval/dialogues/record_shop_questions{name}.jsonl" for name in ("", "_fresh")]
    assert all((ROOT / file).is_file() for file in files)


def test_no_question_and_no_database_leave_the_defaults(clone: Path) -> None:
    """`sqlagent ask` without a question reads stdin, which must be at its end; only make asks the example question there."""
    (clone / ".venv" / "bin" / "sqlagent").write_text(ECHO + "cat\n")
    assert asked(clone) == ["ask", "--", DEFAULT_QUESTION]
    assert asked(clone, "DB=shop.db") == ["ask", "--db", "shop.db"]


def test_the_second_time_costs_nothing(clone: Path) -> None:
    start_s = time.perf_counter()
    asked(clone)
    assert time.perf_counter() - start_s < 1.0


def test_changed_dependencies_are_installed(clone: Path) -> None:
    (clone / "pip.log").touch()
    (clone / ".venv" / "bin" / "python").unlink()
    (clone / ".venv" / "bin" / "python").write_text('#!/bin/sh\necho "$@" >> pip.log\n')
    (clone / ".venv" / "bin" / "python").chmod(0o755)
    os.utime(clone / "constraints.txt", (time.time() + 5, time.time() + 5))
    asked(clone, TORCH_INDEX_URL="an-index")
    log = (clone / "pip.log").read_text()
    assert "-c constraints.txt --extra-index-url an-index -e .\n" in log, "the core alone"
    make(clone, "ui")
    assert "-e .[ui]\n" in (clone / "pip.log").read_text()


def test_an_old_python_is_told_so(clone: Path, tmp_path: Path) -> None:
    shutil.rmtree(clone / ".venv")
    old = tmp_path / "python3.10"
    old.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10); exec(sys.argv[1])" "$2"\n'
    )
    old.chmod(0o755)
    done = make(clone, "ask", f"PYTHON={old}")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert not (clone / ".venv").exists()


def test_retrain_runs_every_stage(clone: Path) -> None:
    done = make(clone, "retrain", "DATA=a folder", "OUT=there", "RECIPE=gpu")
    given = ["train", "all", "--data", "a folder", "--out", "there", "--recipe", "gpu"]
    assert done.stdout.split("\0")[:-1] == given


def test_the_laboratory_s_tests_run_by_themselves_and_with_all(clone: Path) -> None:
    (clone / ".venv" / "bin" / "python").unlink()
    (clone / ".venv" / "bin" / "python").write_text(ECHO)
    (clone / ".venv" / "bin" / "python").chmod(0o755)
    every, lab = (make(clone, target).stdout.split("\0")[:-1] for target in ("test", "test-lab"))
    assert lab[: len(every)] == every and len(lab) > len(every)
    assert all((ROOT / folder).is_dir() for folder in lab[len(every) :])


def test_help_names_both_commands(clone: Path) -> None:
    done = make(clone)
    assert "make ask" in done.stdout
    assert "make test" in done.stdout
