"""Commands that answer with a model of this machine take turns: two at once take many times as long as one after the other,
and twenty do not fit into memory. Each has all processors while it is its turn.

The turn is a lock on a file in the cache folder, which the kernel releases when its holder dies. It goes by the machine's name,
for machines may share a home. `chat` has it while it loads and while it answers, not while a person thinks; servers never take
it. SQLAGENT_TURNS=off does without.
"""

import fcntl
import os
import platform
import sys


class MachineTurn:
    """This process's turn; others that want it meanwhile wait. Taking and leaving it twice does nothing.

    `is_needed` False: nothing runs on this machine, and nobody is waited for.
    """

    def __init__(self, is_needed: bool = True) -> None:
        self._is_needed = is_needed and os.environ.get("SQLAGENT_TURNS") != "off"
        self._descriptor: int | None = None

    def take(self) -> None:
        """Wait until nobody else has it, and say so on stderr. Where no file can be locked, nobody waits for anybody."""
        if self._descriptor is not None or not self._is_needed:
            return
        try:
            self._descriptor = _opened()
            _wait(self._descriptor)
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d" % os.getpid(), 0)
        except OSError:
            self.leave()
        except BaseException:  # Ctrl+C while it waits
            self.leave()
            raise

    def leave(self) -> None:
        """Let the next one have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _opened() -> int:
    from decoding.checkpoints.fetch.cache_folder import made_cache_root

    folder = made_cache_root() / "locks"
    folder.mkdir(exist_ok=True)
    return os.open(folder / f"turn-{platform.node()}.lock", os.O_RDWR | os.O_CREAT, 0o600)


def _wait(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace")
        who = f"process {holder}" if holder.isdigit() else "another process"
        print(f"sqlagent: waiting for {who}, which is answering a question", file=sys.stderr, flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
