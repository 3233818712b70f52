"""Reports the progress of a run: a line per step in a file, and a line on stderr from time to time."""

import json
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from decoding.training.run.schedule import Length

_SMOOTHED_STEPS = 20
LOG = "log.jsonl"


class Reporter:
    """Writes `log.jsonl`, and lines on stderr: every 5 seconds on a terminal, otherwise every 30. Only the leader writes.

    A step's record has step, loss (per answer token), learning_rate, gradient_norm, tokens (rows computed), targets and
    seconds. A validation's record has step and held_out (what `evaluate` returns).
    """

    def __init__(self, folder: Path, length: Length, start_step: int, leads: bool) -> None:
        self._length, self._leads = length, leads
        self._interval_s = 5.0 if sys.stderr.isatty() else 30.0
        self._recent: deque[Mapping[str, float]] = deque(maxlen=_SMOOTHED_STEPS)
        self._shown = -self._interval_s
        self._path = folder / LOG
        if leads:
            kept = [record for record in read_log(folder) if record["step"] < start_step]
            self._path.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")

    def say(self, line: str) -> None:
        """Write one line on stderr."""
        if self._leads:
            print(line, file=sys.stderr, flush=True)

    def step(self, record: Mapping[str, float], elapsed_s: float) -> None:
        """Report one training step; `elapsed_s` is the whole run's."""
        self._write(record)
        self._recent.append(record)
        if self._leads and monotonic() - self._shown >= self._interval_s:
            self._shown = monotonic()
            self.say(self._line(record, elapsed_s))

    def held_out(self, step: int, values: Mapping[str, Any]) -> None:
        """Report one validation."""
        self._write({"step": step, "held_out": values})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.say(f"held out  step {step}  {shown}")

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._leads:
            with self._path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")

    def _line(self, record: Mapping[str, float], elapsed_s: float) -> str:
        targets = sum(each["targets"] for each in self._recent)
        loss = sum(each["loss"] * each["targets"] for each in self._recent) / targets
        rate = sum(each["tokens"] for each in self._recent) / sum(each["seconds"] for each in self._recent)
        done = self._length.progress(int(record["step"]) + 1, elapsed_s)
        left_s = elapsed_s / done * (1 - done) if done else 0.0
        return (
            f"step {record['step']:.0f}  loss {loss:.4f}  lr {record['learning_rate']:.2e}  {rate:.0f} tokens/s  "
            f"{100 * done:.1f} %  {duration(left_s)} left"
        )


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run so far; an incomplete last line, which a killed run leaves, is left out."""
    path = folder / LOG
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def duration(seconds: float) -> str:
    """The duration as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
