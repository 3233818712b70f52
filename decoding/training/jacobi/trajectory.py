"""Jacobi trajectories, and the file format that holds them.

A file of trajectories is JSON Lines, UTF-8, as `record_log` writes them. The first line says how they were collected; every
other line is a trajectory, or a prompt that was left out and why:

    {"block_size": 16, "base": "<SHA-256 of the base>", ...}
    {"id": "...", "step": "plan", "prompt": "...", "prompt_ids": [...], "prefix": 120, "answer_ids": [...], "right": true,
     "forwards": 9, "blocks": [[[...], ...], ...]}
    {"prompt": "...", "left_out": "repeats"}

- `prefix`: how many of the first prompt tokens the prompts of a group share (the schema).
- `answer_ids`: the model's own greedy answer, its stop token included.
- `blocks[j]`: all states of block j in order, each beginning with the tokens that were already accepted; the first state is
  what the block began with, and the last is `answer_ids[j * n : (j + 1) * n]`, the fixed point. All states have n tokens
  except those of the last block, which end where the answer ends, because guesses past the end never become text. So there
  is no padding anywhere.
- `right`: whether the answer is the gold answer. `forwards`: how many of the target the whole answer took.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from decoding.training.collect.record_log import RecordLog, read_records
from decoding.training.data.groups import TrainingDataError

FILE = "trajectories.jsonl"
State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The states through which one answer was decoded. The module's docstring describes the fields."""

    id: str
    step: str
    prompt: str
    prompt_ids: tuple[int, ...]
    prefix: int
    answer_ids: tuple[int, ...]
    right: bool
    forwards: int
    blocks: tuple[tuple[State, ...], ...]

    @property
    def group(self) -> tuple[int, ...]:
        """The prefix that the prompts of its group share."""
        return self.prompt_ids[: self.prefix]


def blocks_of(answer: Sequence[int], seen: Mapping[int, Sequence[State]], n: int) -> tuple[tuple[State, ...], ...]:
    """The states of every block of `n` tokens of `answer`, from those `seen` during decoding, by block.

    States are cut where the answer ends; duplicates are removed; the last state is the block's part of the answer.
    """
    blocks = []
    for number, start in enumerate(range(0, len(answer), n)):
        fixed = tuple(answer[start : start + n])
        states = [state[: len(fixed)] for state in seen.get(number, ())]
        blocks.append(tuple(dict.fromkeys([*states, fixed])))
    return tuple(blocks)


class TrajectoryLog(RecordLog):
    """A folder's file of trajectories, open for appending."""

    def __init__(self, out: Path, origin: Mapping[str, Any]) -> None:
        super().__init__(out / FILE, origin)


def read_trajectories(path: Path, base_sha256: str) -> Iterator[Trajectory]:
    """The trajectories of a file, in order. Raises TrainingDataError, which names a damaged line, or for another base."""
    records = read_records(path, "trajectory")
    _, origin = next(records, ("", {}))
    if "block_size" not in origin:
        raise TrainingDataError(f"{path} holds no trajectories: make them with `sqlagent train jacobi collect`")
    if origin.get("base") != base_sha256:
        raise TrainingDataError(f"{path} was collected with another base model: collect anew with this one")
    for where, record in records:
        if "left_out" not in record:
            yield _trajectory(record, where)


def _trajectory(record: Mapping[str, Any], where: str) -> Trajectory:
    try:
        values = {field.name: record[field.name] for field in fields(Trajectory)}
        values |= {name: tuple(record[name]) for name in ("prompt_ids", "answer_ids")}
        values["blocks"] = tuple(tuple(tuple(state) for state in block) for block in record["blocks"])
        return Trajectory(**values)
    except (KeyError, TypeError) as error:
        raise TrainingDataError(f"{where}: no trajectory ({error!r})") from error
