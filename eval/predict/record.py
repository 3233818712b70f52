"""What a run leaves behind for each question: the prediction that comes in, the record that goes to disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from decoding.engine.records.json_log import JsonLog, changed_keys, cut_torn_line, whole_lines
from eval.datasets.official import Example


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was asked gives back. `sql` is "" where there is none; `error` is what the asked one says went wrong.

    `wall_ms` is the time to the SQL. `new_tokens` are those that target forwards committed, forced ones left out, so
    that `new_tokens / target_forwards` is tokens per forward. `steps` are the agent's own records, plain JSON. `continues` is
    the number, from 1, of the earlier question that the answer says it goes on from; None where the question stood by itself.
    """

    sql: str
    error: str | None = None
    wall_ms: float = 0.0
    new_tokens: int = 0
    target_forwards: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    continues: int | None = None


Predict = Callable[[Example], Prediction]


@dataclass(frozen=True, slots=True)
class Record:
    """One line of records.jsonl.

    `executed`: the question counts, its database is there and its gold query ran; `gold_error` says why not. `correct`
    is the official verdict on execution, `em` Spider's exact match (None where it does not apply). `error` is why the
    predicted SQL gave no rows when it was scored, `prediction_error` what the one who predicted said. `continues` is as in
    `Prediction`.
    """

    id: str
    db_id: str
    question: str
    gold: str
    sql: str
    executed: bool
    correct: bool
    em: bool | None
    error: str | None
    difficulty: str
    wall_ms: float
    new_tokens: int
    target_forwards: int
    steps: list[dict[str, Any]]
    prediction_error: str | None = None
    gold_error: str | None = None
    soft_f1: float | None = None
    ves_reward: float | None = None
    continues: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record of one line. Raises KeyError for a missing field that has no default; unknown ones are left out."""
        return cls(**known_fields(cls, values))


def known_fields(kind: type["Line"], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields that `kind` has; an older log may lack those that have a default. Raises KeyError."""
    return {item.name: values[item.name] for item in fields(kind) if item.name in values or item.default is MISSING}


class ResumeError(Exception):
    """The folder holds another run, or a damaged one; the message is one line that says what to do."""


class Line(Protocol):
    """A dataclass that is a line of a log. No two lines of a log have the same `id`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> str: ...

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self: ...


R = TypeVar("R", bound=Line)


class RecordLog(Generic[R]):
    """records.jsonl of a folder, written so that a run that was killed goes on where it stopped."""

    def __init__(self, out: Path, settings: Mapping[str, Any], kind: type[R]) -> None:
        """Open or create the run of `out`. Raises `ResumeError` when it was made with other `settings`."""
        out.mkdir(parents=True, exist_ok=True)
        path, self._settings, self._kind = out / "records.jsonl", settings, kind
        _check_settings(out / "settings.json", settings)
        self.records = read_records(path, kind)
        self._log = JsonLog(path)

    def append(self, record: R) -> None:
        """Write one record through to the disk."""
        self._log.write(asdict(record))
        self.records.append(record)

    def take_over(self, folders: Sequence[Path]) -> int:
        """Append what other logs hold of the same run; the number of these. Raises `ResumeError` for another run's."""
        for folder in folders:
            _check_settings(folder / "settings.json", self._settings)
            known = {record.id for record in self.records}
            for record in read_records(folder / "records.jsonl", self._kind):
                if record.id not in known:
                    self.append(record)
        return len(folders)

    def in_order(self, ids: Sequence[str]) -> list[R]:
        """The records of these questions, in this order."""
        by_id = {record.id: record for record in self.records}
        return [by_id[each] for each in ids]

    def close(self) -> None:
        """Close the file; the records stay readable."""
        self._log.close()


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a new run; compare those of one that is there."""
    wanted = json.loads(json.dumps(settings))
    if not file.exists():
        file.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        return
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResumeError(f"{file} is damaged ({error}): delete its folder to start anew") from error
    for key in changed_keys(held, wanted)[:1]:
        raise ResumeError(
            f"{file.parent} holds a run with {key} = {held.get(key)}, not {wanted.get(key)}: "
            "choose another output folder, or delete that one to start anew"
        )


def read_records(path: Path, kind: type[R]) -> list[R]:
    """The records there are. A last line that was torn by a crash is cut off the file."""
    if not path.exists():
        return []
    cut_torn_line(path)
    try:
        return [kind.from_json(json.loads(line)) for _, line in whole_lines(path)]
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{path} is damaged ({error}): delete its folder to start anew") from error
