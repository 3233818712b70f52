"""Runs a program that a model wrote, in a process of its own: no network, no files but the standard library's, little memory
and time.

Two locks: the kernel's (limits, and where the system allows it a network namespace without a network) and Python's audit
events (PEP 578), which refuse files, sockets, processes and native code. Neither makes it safe to run what an attacker wrote
with care; the programs of a benchmark are mistakes at worst.
"""

import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CHILD = Path(__file__).with_name("program_process.py")
MOST_OUTPUT = 2000  # characters of the error that are kept


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended; `said`: its error, on one line."""

    kind: Literal["passed", "failed", "timed out"]
    said: str = ""


def run_program(program: str, timeout_s: float, memory_mb: int = 1024) -> Ending:
    """Run a program to its end. It has passed if its last line was reached without an error."""
    word = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", "-B", str(CHILD), str(memory_mb), str(int(timeout_s) + 1)]
    with tempfile.TemporaryDirectory() as empty:
        try:
            done = subprocess.run(
                command,
                input=f"{word}\n{program}".encode(errors="surrogatepass"),
                capture_output=True,
                cwd=empty,
                env={},
                timeout=timeout_s,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Ending("timed out", f"after {timeout_s:g} s")
    if done.stdout.rstrip().endswith(word.encode()):
        return Ending("passed")
    error = done.stderr.decode(errors="replace")[-MOST_OUTPUT:].strip()
    return Ending("failed", error.splitlines()[-1][:200] if error else f"exit code {done.returncode}")
