"""Which files a command enters, and how often it comes back to one: python -m tests.layout.call_walk FOLDER[,FOLDER] COMMAND...

COMMAND is sqlagent's, such as `ask "How many albums?"`; FOLDERs are those whose files count. An arrow is a pair of files of
which one calls the other. Files that are entered once need one arrow less than there are files; every arrow more comes
back to a file that was entered before. Only this process is watched.
"""

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class CallWalk:
    """Owner of the arrows between files, as the profiler reports calls."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._prefixes = tuple(str(ROOT / folder) for folder in folders)
        self.arrows: dict[tuple[str, str], None] = {}

    def watch(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function: see `sys.setprofile`."""
        callee = frame.f_code.co_filename
        if event != "call" or not callee.startswith(self._prefixes) or frame.f_code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._prefixes):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != callee:
            self.arrows[caller.f_code.co_filename, callee] = None

    def counts(self) -> dict[str, int]:
        files = {file for arrow in self.arrows for file in arrow}
        return {"files": len(files), "arrows": len(self.arrows), "back": len(self.arrows) - max(0, len(files) - 1)}


def main() -> None:
    folders, *command = sys.argv[1:]
    walk = CallWalk(tuple(folders.split(",")))
    from app.cli import main as run

    sys.argv = ["sqlagent", *command]
    threading.setprofile(walk.watch)
    sys.setprofile(walk.watch)
    try:
        run()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    print(json.dumps(walk.counts()), file=sys.stderr)


if __name__ == "__main__":
    main()
