"""The process in which files are copied into a database: reads what strangers made, under the kernel's limits, and ends."""

import os
import resource
import signal
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import ormsgpack
from pydantic import TypeAdapter

from tools.databases.files.file_kinds import FileKind
from tools.databases.files.load_files import Copied, copy_files
from tools.databases.files.sheets import Choices
from tools.databases.query_process import Bounds, ending_with, lower
from tools.result import Limits, OpenError

COPIED = TypeAdapter(Copied)


@dataclass(frozen=True, slots=True)
class Loading:
    """What is to be copied where, with how much time, memory and room on disk."""

    files: tuple[tuple[Path, FileKind], ...]
    copy: Path
    optional: tuple[Path, ...]
    deadline_s: float
    memory_mb: int
    disk_mb: int
    choices: Choices = field(default_factory=dict)


def serve(descriptor: int) -> None:
    """Take one `Loading`, answer, and end. The answer is MessagePack: names and notes, or an error's one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole terminal; the owner decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold the data
    pipe = Connection(descriptor)
    with ending_with(pipe):
        loading: Loading = pipe.recv()
    Bounds().hold(Limits(deadline_s=loading.deadline_s, memory_limit_mb=loading.memory_mb))
    lower(resource.RLIMIT_FSIZE, loading.disk_mb << 20)
    answer = _answer(loading)
    with ending_with(pipe):
        pipe.send_bytes(answer)
    os._exit(0)  # without the leave-taking of libraries, which would be read on stderr


def _answer(loading: Loading) -> bytes:
    try:
        copied = copy_files(loading.files, loading.copy, loading.optional, loading.memory_mb, loading.choices)
        return ormsgpack.packb(COPIED.dump_python(copied, mode="json"), option=ormsgpack.OPT_REPLACE_SURROGATES)
    except OpenError as error:
        return ormsgpack.packb({"error": str(error)}, option=ormsgpack.OPT_REPLACE_SURROGATES)
    except MemoryError:
        return ormsgpack.packb({"error": ""})
