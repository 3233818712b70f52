"""What a Jacobi trajectory is, and the file that holds them.

A file of trajectories is JSON Lines, UTF-8, as `record_log` writes them. The first line says how they came about; each other
line is a trajectory, or a prompt that was left out and why:

    {"block_size": 16, "base": "<SHA-256 of the base>", ...}
    {"id": "...", "step": "plan", "prompt": "...", "prompt_ids": [...], "prefix": 120, "answer_ids": [...], "right": true,
     "forwards": 9, "blocks": [[[...], ...], ...]}
    {"prompt": "...", "left_out": "repeats"}

- `prefix`: that many first prompt tokens are shared by the prompts of a group (the schema).
- `answer_ids`: the model's own greedy answer, its stop token included.
- `blocks[j]`: the states of block j in order, all of them, each with the tokens that were already accepted in front; the
  first is what the block began with, the last is `answer_ids[j * n : (j + 1) * n]`, the fixed point. All states have n tokens
  but those of the last block: they end where the answer ends, for what a guess holds past the end never becomes text. So
  there is no padding anywhere.
- `right`: the answer is the gold answer. `forwards`: of the target, for the whole answer.
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
    """How one answer came about. See above."""

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
        """What the prompts of its group begin with."""
        return self.prompt_ids[: self.prefix]


def blocks_of(answer: Sequence[int], seen: Mapping[int, Sequence[State]], n: int) -> tuple[tuple[State, ...], ...]:
    """The states of every block of `n` tokens of `answer`, from those that were `seen` on the way, by block.

    States are cut where the answer ends; of equal ones one is kept; the last is the block's part of the answer.
    """
    blocks = []
    for number, start in enumerate(range(0, len(answer), n)):
        fixed = tuple(answer[start : start + n])
        states = [state[: len(fixed)] for state in seen.get(number, ())]
        blocks.append(tuple(dict.fromkeys([*states, fixed])))
    return tuple(blocks)


class TrajectoryLog(RecordLog):
    """The file of a folder under construction."""

    def __init__(self, out: Path, origin: Mapping[str, Any]) -> None:
        super().__init__(out / FILE, origin)


def read_trajectories(path: Path, base_sha256: str) -> Iterator[Trajectory]:
    """The trajectories of a file, in order. Raises TrainingDataError that names the line, or where the base is another."""
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
