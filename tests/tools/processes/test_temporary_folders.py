"""Temporary folders: gone when removed, gone after a killed process, kept while their process lives."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tools import processes

ROOT = Path(__file__).parents[3]
CODE = "import time; from tools.processes import new_folder; print(new_folder(), flush=True); time.sleep(60)"


def _other_process(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a folder under `folder`, made to look two minutes old."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    held = Path(process.stdout.readline().strip())
    os.utime(held, (time.time() - 120, time.time() - 120))
    return process, held


def test_only_a_dead_processes_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a full disk after killed workers, and against taking a living process's folder away."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, kept = _other_process(tmp_path)
    killed, left = _other_process(tmp_path)
    killed.kill()
    killed.wait()
    assert left.exists()
    processes._remove_abandoned.cache_clear()
    own = processes.new_folder()
    assert (kept.exists(), left.exists(), own.stat().st_mode & 0o777) == (True, False, 0o700)
    processes.remove_folder(own)
    processes.remove_folder(own)
    assert not own.exists()
    living.kill()
    living.wait()
