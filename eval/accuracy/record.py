"""What a run knows about each question: the prediction that it gets, and the record that it writes to disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from decoding.json_log import JsonLog, changed_keys, cut_torn_line, whole_lines
from eval.datasets.official import Example


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a predictor returns. `sql` is "" if there is none; `error` is the predictor's own account of what went wrong.

    `wall_ms` is the time to the SQL. `new_tokens` counts the tokens that target forwards committed, without forced ones, so
    that `new_tokens / target_forwards` is tokens per forward. `steps` are the agent's own records, as JSON values. `continues`
    is the number, from 1, of the earlier question that the answer says it continues; None if it continues none.
    `confidence`, `probably_wrong` and `features` are the answer's, `alternatives` and `votes` too.
    """

    sql: str
    error: str | None = None
    wall_ms: float = 0.0
    new_tokens: int = 0
    target_forwards: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    continues: int | None = None
    confidence: float | None = None
    probably_wrong: bool = False
    features: dict[str, float] = field(default_factory=dict)
    votes: int = 0
    alternatives: list[dict[str, Any]] = field(default_factory=list)


Predict = Callable[[Example], Prediction]


@dataclass(frozen=True, slots=True)
class Record:
    """One line of records.jsonl.

    `executed`: the question counts, because its database is present and its gold query ran; if not, `gold_error` says why.
    `correct` is the official verdict on execution. `error` is why the predicted SQL returned no rows when it was scored,
    `prediction_error` the predictor's own error. `continues` is as in `Prediction`.
    """

    id: str
    db_id: str
    question: str
    gold: str
    sql: str
    executed: bool
    correct: bool
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
    confidence: float | None = None
    probably_wrong: bool = False
    features: dict[str, float] = field(default_factory=dict)
    votes: int = 0
    alternatives: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record in a line. Raises KeyError for a missing field that has no default; ignores unknown ones."""
        return cls(**known_fields(cls, values))


def known_fields(kind: type["Line"], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields that `kind` has; older logs may lack fields with a default. Raises KeyError."""
    required = (item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING)
    given = [item.name for item in fields(kind) if item.name in values]
    return {name: values[name] for name in dict.fromkeys((*required, *given))}


class ResumeError(Exception):
    """The folder holds another run or a damaged one; the message is one line that says what to do."""


class Line(Protocol):
    """A dataclass that is a line of a log. Each `id` occurs once in a log."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> str: ...

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self: ...


R = TypeVar("R", bound=Line)


class RecordLog(Generic[R]):
    """A folder's records.jsonl, written so that a run that was killed can be continued."""

    def __init__(self, out: Path, settings: Mapping[str, Any], kind: type[R]) -> None:
        """Open or create the run in `out`. Raises `ResumeError` if it was made with other `settings`."""
        out.mkdir(parents=True, exist_ok=True)
        path, self._settings, self._kind = out / "records.jsonl", settings, kind
        _check_settings(out / "settings.json", settings)
        self.records = read_records(path, kind)
        self._log = JsonLog(path)

    def append(self, record: R) -> None:
        """Write one record through to the disk."""
        self._log.write(asdict(record))
        self.records.append(record)

    def in_order(self, ids: Sequence[str]) -> list[R]:
        """The records of these questions, in this order."""
        by_id = {record.id: record for record in self.records}
        return [by_id[each] for each in ids]

    def close(self) -> None:
        """Close the file; the records stay readable."""
        self._log.close()


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a new run, or compare them with those of an existing run."""
    wanted = json.loads(json.dumps(settings))
    if not file.exists():
        file.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        return
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResumeError(f"{file} is damaged ({error}): delete its folder to start again") from error
    for key in changed_keys(held, wanted)[:1]:
        raise ResumeError(
            f"{file.parent} holds a run with {key} = {held.get(key)}, not {wanted.get(key)}: "
            "choose another output folder, or delete that one to start again"
        )


def read_records(path: Path, kind: type[R]) -> list[R]:
    """All records. If a crash left an incomplete last line, it is removed from the file."""
    if not path.exists():
        return []
    cut_torn_line(path)
    try:
        return [kind.from_json(json.loads(line)) for _, line in whole_lines(path)]
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{path} is damaged ({error}): delete its folder to start again") from error
