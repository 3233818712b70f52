"""What a run tells while it goes: a line per step in a file, and now and then one on stderr."""

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
    """Writes `log.jsonl`, and lines on stderr: every 5 seconds on a terminal, else every 30. Silent where it does not lead.

    A record of a step: step, loss (per answer token), learning_rate, gradient_norm, tokens (rows computed), targets,
    seconds. One of a validation: step, held_out (what `evaluate` says).
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
        """One line on stderr."""
        if self._leads:
            print(line, file=sys.stderr, flush=True)

    def step(self, record: Mapping[str, float], elapsed_s: float) -> None:
        """One training step; `elapsed_s` is of the whole run."""
        self._write(record)
        self._recent.append(record)
        if self._leads and monotonic() - self._shown >= self._interval_s:
            self._shown = monotonic()
            self.say(self._line(record, elapsed_s))

    def held_out(self, step: int, values: Mapping[str, Any]) -> None:
        """One validation."""
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
    """The records of a run so far; a line that a kill cut short is left out."""
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
    """h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
