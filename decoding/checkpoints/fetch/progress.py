"""How long-running model work (fetching, converting) tells how far it is; it never writes to stdout."""

import sys
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, bytes in all (0: not known); the same `what` repeats until it is done."""


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


class _StderrProgress:
    """One line per task on a terminal, redrawn per percent; elsewhere one line when a task starts."""

    def __init__(self) -> None:
        self._shown = ("", -1)

    def __call__(self, what: str, done: int, total: int) -> None:
        percent = 100 * done // total if total else 0
        previous = self._shown
        self._shown = (what, percent)
        if not sys.stderr.isatty():
            if what != previous[0]:
                print(f"{what}{_size(total)} ...", file=sys.stderr, flush=True)
        elif self._shown != previous:
            end = "\n" if total and done >= total else ""
            start = "\n" if previous[0] not in ("", what) and previous[1] < 100 else ""
            print(f"{start}\r\033[K{what}{_size(total)}: {percent} %", end=end, file=sys.stderr, flush=True)


def _size(total: int) -> str:
    return f" ({total / 1e6:.0f} MB)" if total else ""


on_stderr: Progress = _StderrProgress()
