"""The watchdog alone: an engine that forgets interrupts, a query that ends in time, who asked for the end.

Temporary folders: gone when removed, gone after a killed process, kept while their process lives.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tools import processes
from tools.processes import Watchdog


class Forgetful:
    """A query that only the third interrupt stops, as one does whose first two arrive between calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.calls += 1
        if self.calls == 3:
            self.stopped.set()


def test_it_asks_until_the_query_stops() -> None:
    query = Forgetful()
    with Watchdog(0.05, query.stop) as watchdog:
        assert query.stopped.wait(2.0)
    assert watchdog.reason == "timeout"


def test_the_first_reason_stays() -> None:
    query = Forgetful()
    with Watchdog(60.0, query.stop) as watchdog:
        watchdog.interrupt()
        assert query.stopped.wait(2.0)
        watchdog.interrupt()
    assert watchdog.reason == "interrupted"


def test_a_query_in_time_is_left_alone() -> None:
    query, started, threads = Forgetful(), time.monotonic(), threading.active_count()
    with Watchdog(60.0, query.stop) as watchdog:
        pass
    assert (watchdog.reason, query.calls) == (None, 0)
    assert time.monotonic() - started < 1.0
    assert threading.active_count() == threads


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
