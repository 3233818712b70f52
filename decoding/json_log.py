"""A file of JSON objects, one per line. Each line is flushed to disk, so a killed run can resume where it stopped.

What the objects mean, and which run they belong to, is up to the writer.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class JsonLog:
    """Such a file, open for appending. `separators`: as `json.dumps` takes them."""

    def __init__(self, path: Path, separators: tuple[str, str] = (", ", ": ")) -> None:
        """Open or create the file; an incomplete last line, which a killed run leaves, is removed."""
        cut_torn_line(path)
        self.path, self._separators = path, separators
        self._file = path.open("ab")

    def write(self, values: Mapping[str, Any]) -> None:
        """Write one line and flush it to disk. Lone surrogates, which UTF-8 cannot encode, become question marks."""
        line = json.dumps(values, ensure_ascii=False, separators=self._separators)
        self._file.write(line.encode("utf-8", "replace") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def cut_torn_line(path: Path) -> None:
    """Remove a last line that does not end in a newline. Does nothing if there is no file."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)


def whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The complete lines with their numbers, from 1; an incomplete last one is left out. Raises OSError, UnicodeDecodeError."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith("\n"):
                yield number, line


def changed_keys(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Sorted names of the values in which two runs differ."""
    return sorted(key for key in held.keys() | wanted.keys() if held.get(key) != wanted.get(key))
