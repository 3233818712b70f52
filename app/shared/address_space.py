"""Checks that this process may use the address space that its libraries need; with less, some crash without a message.

They need much more address space than memory: for their threads' stacks and arenas, and for files that are mapped whole.
"""

import os
import resource

from app.shared import exit_codes

BASE_MB, PER_CORE_MB = 900, 100
"""The need of Python, DuckDB and its threads, measured on two cores; with less there was a segmentation fault."""
MODEL_MB = 1900
"""The need of torch and the embedded model on top of that."""


def check_address_space(with_model: bool) -> None:
    """Exit with one line if `ulimit -v` is too low. Raises typer.Exit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    needed_mb = BASE_MB + PER_CORE_MB * cores + (MODEL_MB if with_model else 0)
    if soft != resource.RLIM_INFINITY and soft < needed_mb << 20:
        raise exit_codes.fail(
            f"this process may have {soft >> 20} MiB of address space and needs {needed_mb}: raise `ulimit -v`, or lift it",
            exit_codes.FAILED,
        )
