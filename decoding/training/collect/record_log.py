"""A file of collected records, one JSON object per line; the first line says how they were collected.

Every other line is a record, or a prompt that was left out and why: `{"prompt": "...", "left_out": "repeats"}`. Each line is
flushed to disk, so that a killed collection can resume where it stopped.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decoding.engine.records.json_log import JsonLog, changed_keys, whole_lines
from decoding.training.config import TrainingError
from decoding.training.data.groups import TrainingDataError


class RecordLog:
    """Such a file, open for appending. Records are dataclasses with a `prompt`."""

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        """Open or create the file. `done`: the prompts in it. Raises TrainingError if it has another `origin`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._log = JsonLog(path, separators=(",", ":"))
        self.done = {record["prompt"] for record in self._continue(json.loads(json.dumps(origin)))}

    def append(self, record: Any) -> None:
        """Write one record and flush it to disk."""
        self._log.write(asdict(record))

    def leave_out(self, prompt: str, reason: str) -> None:
        """Note that a prompt was tried and left out."""
        self._log.write({"prompt": prompt, "left_out": reason})

    def close(self) -> None:
        self._log.close()

    def _continue(self, origin: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The records of an existing file. A new file gets its origin."""
        if self.path.stat().st_size == 0:
            self._log.write(origin)
            return []
        [found, *records] = [record for _, record in read_records(self.path)]
        if changed := changed_keys(found, origin):
            raise TrainingError(
                f"{self.path} was collected with another {', '.join(changed)}: collect as before, or choose another folder"
            )
        return records


def read_records(path: Path, what: str = "record") -> Iterator[tuple[str, dict[str, Any]]]:
    """(location, record) of every line, the origin first. An incomplete last line, which a killed run leaves, is no record.

    Raises TrainingDataError, which names the line.
    """
    try:
        for number, line in whole_lines(path):
            yield f"{path}, line {number}", _object(line, f"{path}, line {number}", what)
    except OSError as error:
        raise TrainingDataError(f"{path} cannot be read: {error}") from error


def _object(line: str, where: str, what: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise TrainingDataError(f"{where}: no {what} ({error})") from error
    if not isinstance(record, dict):
        raise TrainingDataError(f"{where}: no {what}")
    return record
