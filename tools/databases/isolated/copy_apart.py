"""Copies files into a database in a process of their own: a file that crashes its reader, or makes it take all memory or
hours, costs one line."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import ormsgpack
from pydantic import ValidationError

from tools.databases.files.file_kinds import FileKind
from tools.databases.files.load_files import Copied
from tools.databases.files.sheets import DETECTED, Choices
from tools.databases.isolated.loading_process import COPIED, Loading
from tools.databases.isolated.query_worker import KEPT
from tools.processes.child_process import ChildProcess
from tools.processes.watchdog import Watchdog
from tools.result import OpenError

AT_ONCE = 2
"""Files that load at a time in one program; others wait."""
LEAST_S, S_PER_MB = 120.0, 2.0
LEAST_MEMORY_MB, MEMORY_PER_MB, MOST_MEMORY_MB = 1024, 4, 4096
LEAST_DISK_MB, DISK_PER_MB = 2048, 20
"""What loading may take, by the size of the files: a small file that takes much is no honest one."""
LONGEST_ANSWER = 64 << 20  # bytes

_turns = BoundedSemaphore(AT_ONCE)


def copy_apart(
    files: Sequence[tuple[Path, FileKind]], copy: Path, optional: Collection[Path] = (), choices: Choices = DETECTED
) -> Copied:
    """As `tools.databases.files.load_files.copy_files`. Raises OpenError."""
    loading = replace(_loading(files, copy, optional), choices=dict(choices))
    what = str(files[0][0]) if len(files) == 1 else f"these {len(files)} files"
    with _turns:
        answer = _answer(loading, what)
    if answer.get("error"):
        raise OpenError(str(answer["error"]))
    try:
        return COPIED.validate_python(answer)
    except ValidationError as error:
        raise OpenError(_too_much(loading, what)) from error


def _loading(files: Sequence[tuple[Path, FileKind]], copy: Path, optional: Collection[Path]) -> Loading:
    size_mb = sum(file.stat().st_size for file, _ in files) >> 20
    return Loading(
        tuple(files),
        copy,
        tuple(optional),
        deadline_s=LEAST_S + S_PER_MB * size_mb,
        memory_mb=min(LEAST_MEMORY_MB + MEMORY_PER_MB * size_mb, MOST_MEMORY_MB),
        disk_mb=LEAST_DISK_MB + DISK_PER_MB * size_mb,
    )


def _answer(loading: Loading, what: str) -> dict[str, Any]:
    """What the process says, as plain data. Raises OpenError where it is lost."""
    environment = {name: value for name, value in os.environ.items() if name in KEPT}
    try:
        process = ChildProcess(
            "tools.databases.isolated.loading_process", environment=environment | {"TMPDIR": str(loading.copy.parent)}
        )
    except OSError as error:
        raise OpenError(f"no process for loading starts: {error}") from error
    try:
        with Watchdog(loading.deadline_s, process.kill) as watchdog:
            process.pipe.send(loading)
            answer = ormsgpack.unpackb(process.pipe.recv_bytes(LONGEST_ANSWER))
            return answer if isinstance(answer, dict) else {}
    except (EOFError, OSError, ValueError) as error:
        if watchdog.reason == "timeout":
            raise OpenError(f"{what} takes longer than {loading.deadline_s:g} s to load; load a part of it") from error
        raise OpenError(_too_much(loading, what)) from error
    finally:
        process.close()


def _too_much(loading: Loading, what: str) -> str:
    told = f"{what} is damaged, or takes more than {loading.memory_mb} MiB of memory to load"
    return f"{told}; load a part of it, or save it as CSV"
