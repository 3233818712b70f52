"""A process of this program's own with a pipe to it: started, killed, and asked what it died of.

Not multiprocessing's spawn: that would run the main program's file again in the child, language model and all.
"""

import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

_CODE = (
    "import importlib, sys; sys.path.insert(0, sys.argv[1]);"
    "importlib.import_module(sys.argv[2]).serve(*map(int, sys.argv[3:]))"
)


class ChildProcess:
    """Runs `module`.serve(file descriptor of the pipe's other end, *numbers). stdout is closed to it; stderr is this process's.

    `environment` None: this process's own. Raises OSError when the system starts no process.
    """

    def __init__(self, module: str, *numbers: int, environment: Mapping[str, str] | None = None) -> None:
        own_end, child_end = Pipe()
        root = str(Path(__file__).resolve().parents[__name__.count(".")])  # of the outermost package
        command = [sys.executable, "-P", "-c", _CODE, root, module, str(child_end.fileno()), *map(str, numbers)]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
        except OSError:
            own_end.close()
            raise
        finally:
            child_end.close()
        self.pipe: Connection = own_end

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def tell(self, message: object) -> None:
        """Send a message, unless the process is gone."""
        try:
            self.pipe.send(message)
        except OSError:
            return

    def kill(self) -> None:
        """End it now; what it was doing is lost."""
        self._process.kill()

    def close(self) -> None:
        """Kill it, and release what belongs to it."""
        self.kill()
        self._process.wait()
        self.pipe.close()

    def cause_of_death(self, patience_s: float = 2.0) -> str:
        """The signal or exit code of a process that is gone or about to go; after `patience_s` it is killed."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
