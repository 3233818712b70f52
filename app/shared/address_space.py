"""Whether this process may have the memory that its libraries take: below that some of them crash without a word.

They ask for much more address space than memory: stacks and arenas of their threads, files mapped in whole.
"""

import os
import resource

from app.shared import exit_codes

BASE_MB, PER_CORE_MB = 900, 100
"""What Python, DuckDB and its threads took: with less it was a segmentation fault, measured at two cores."""
MODEL_MB = 1900
"""What torch and the embedded model took on top of that."""


def check_address_space(with_model: bool) -> None:
    """End in one line under a `ulimit -v` that is too low. Raises typer.Exit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    needed_mb = BASE_MB + PER_CORE_MB * cores + (MODEL_MB if with_model else 0)
    if soft != resource.RLIM_INFINITY and soft < needed_mb << 20:
        raise exit_codes.fail(
            f"this process may have {soft >> 20} MiB of address space and needs {needed_mb}: raise `ulimit -v`, or lift it",
            exit_codes.FAILED,
        )
