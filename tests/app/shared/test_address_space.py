"""A `ulimit -v` that is too low is told in a line; it was a segmentation fault of a library."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from app.shared import exit_codes

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", [["sql", "SELECT 1"], ["ask", "How many?"], ["chat"]])
@pytest.mark.parametrize("megabytes", [300, 600, 900])
def test_little_address_space_is_one_line(command: list[str], megabytes: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    done = subprocess.run(
        [sys.executable, "-c", "from app.cli import app; app()", *command, "--db", str(tmp_path / "t.csv")],
        cwd=ROOT,
        env=os.environ | {"SQLAGENT_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20)),
    )
    assert done.returncode == exit_codes.FAILED
    assert f"{megabytes} MiB of address space" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_want_of_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("mmap: Cannot allocate memory (12)"),
    ):
        with pytest.raises(exit_codes.typer.Exit), exit_codes.plain_errors():
            raise error
        said = capsys.readouterr().err
        assert "not enough memory" in said and said.count("\n") == 1
    with pytest.raises(exit_codes.typer.Exit), exit_codes.plain_errors():
        raise RuntimeError("something else")
    assert "this failed unexpectedly (RuntimeError: something else)" in capsys.readouterr().err
