"""The process in which `run_program` runs a program: it imports nothing of this project.

Arguments: memory in MiB, processor time in seconds. stdin: a secret word on a line, then the program. stdout: the word, if the
program came to its end.
"""

import builtins
import io
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

REFUSED = (
    "socket.", "subprocess.", "os.", "shutil.", "tempfile.", "ctypes.", "sqlite3.", "ftplib.", "smtplib.", "urllib.",
    "http.", "poplib.", "imaplib.", "nntplib.", "telnetlib.", "webbrowser.", "pty.", "mmap.", "fcntl.", "signal.",
    "syslog.", "winreg.", "msvcrt.", "resource.", "glob.", "pathlib.", "sys._current_frames",
    "sys.addaudithook", "sys.setprofile", "sys.settrace", "gc.", "code.__new__", "cpython.", "faulthandler.",
)  # fmt: skip
"""Prefixes of audit events that no function of a benchmark needs."""

READING = ("os.listdir", "os.scandir")  # how modules are found
MODULES = frozenset(
    ("ctypes", "_ctypes", "socket", "_socket", "_posixsubprocess", "subprocess", "multiprocessing", "mmap")
)
WRITING = os.O_WRONLY | os.O_RDWR
NEW_NETWORK, NEW_USER = 0x40000000, 0x10000000  # of unshare(2)


class Refused(PermissionError):
    """The program asked for something that it may not have."""


def without_network() -> None:
    """Leave the machine's network, where the system lets an ordinary process do so."""
    with suppress(Exception):
        import ctypes

        ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK)
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
        del sys.modules[name]  # so that another import of it is seen


def bounded(memory_mb: int, cpu_s: int) -> None:
    """The kernel's limits: memory, time, no file written, no core dump."""
    wanted = {
        resource.RLIMIT_AS: memory_mb << 20,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for what, most in wanted.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


def guard(library: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    """The audit hook. `library`: folders from which modules are read."""
    refused, reading, modules, startswith = REFUSED, READING, MODULES, str.startswith
    error, fspath, is_text = Refused, os.fspath, isinstance

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = values
            reads = not flags & WRITING if mode is None else mode in ("r", "rb")
            if not (reads and is_text(path, (str, bytes)) and startswith(fspath(path), library)):
                raise error("the program may open no file")
        elif event == "import":
            if values[0].partition(".")[0] in modules:
                raise error(f"the program may not import {values[0]}")
        elif event in reading:
            if not (is_text(values[0], str) and startswith(values[0], library)):
                raise error("the program may look at no folder")
        elif startswith(event, refused):
            raise error(f"the program may not do this: {event}")

    return hook


def main() -> None:
    memory_mb, cpu_s = map(int, sys.argv[1:3])
    word, _, program = sys.stdin.buffer.read().decode(errors="surrogatepass").partition("\n")
    say, code = os.write, compile(program, "<program>", "exec")
    library = tuple(path for path in sys.path if path)
    without_network()
    bounded(memory_mb, cpu_s)
    for name in ("exit", "quit", "input", "breakpoint", "help"):
        if hasattr(builtins, name):
            delattr(builtins, name)
    sys.stdout = io.StringIO()  # what it prints is nobody's
    sys.argv[:] = ["program"]
    sys.addaudithook(guard(library))
    exec(code, {"__name__": "__main__"})
    say(1, f"\n{word}".encode())


main()
