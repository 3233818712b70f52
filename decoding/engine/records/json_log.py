"""A file of JSON objects, one a line, written through to the disk, so that a run that was killed goes on where it stopped.

What the objects are, and which run they belong to, is for those who write them.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class JsonLog:
    """Such a file under construction. `separators`: as `json.dumps` takes them."""

    def __init__(self, path: Path, separators: tuple[str, str] = (", ", ": ")) -> None:
        """Open or create it; a last line that a kill cut short is cut off."""
        cut_torn_line(path)
        self.path, self._separators = path, separators
        self._file = path.open("ab")

    def write(self, values: Mapping[str, Any]) -> None:
        """Write one line through to the disk. Half characters, which no file can hold, become question marks."""
        line = json.dumps(values, ensure_ascii=False, separators=self._separators)
        self._file.write(line.encode("utf-8", "replace") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def cut_torn_line(path: Path) -> None:
    """Cut off a last line that has no end. Nothing is done where there is no file."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)


def whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, from 1, but for a last one that has no end. Raises OSError and UnicodeDecodeError."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith("\n"):
                yield number, line


def changed_keys(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Names of the values that two runs do not have in common, in order."""
    return sorted(key for key in held.keys() | wanted.keys() if held.get(key) != wanted.get(key))
