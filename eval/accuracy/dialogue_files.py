"""Reads files of dialogues, and computes the figures of a run.

Reads a file of dialogues, one per line, as JSON. Opens no database.

    {"id": "d01", "database": "example", "turns": [{"question": "How many artists are there?",
     "sql": "SELECT COUNT(*) FROM artists", "kind": "opening", "continues": null}, ...]}

`database` is "example" or a path relative to the file. `sql` is the gold query in the dialect in which `open_database` opens
that database; null if the turn only says "start over". `continues` is the number, from 1, of the earlier turn that the
question continues; null if it is self-contained.

The record that a run of dialogues stores for each turn.

Computes the figures of dialogues from their records, in pure functions. All shares are fractions of 1.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from eval.accuracy.record import known_fields
from eval.accuracy.summary import mean, percentile, share, wilson_95
from eval.datasets.official import DatasetError, Part, json_lines, made_database, part_of

BUNDLED = Path(__file__).parents[1] / "dialogues" / "record_shops.jsonl"
EXAMPLE = "example"


@dataclass(frozen=True, slots=True)
class Turn:
    """A question with its gold query, and its role in the conversation (`kind`: a label that the file chooses)."""

    question: str
    sql: str | None
    kind: str
    continues: int | None


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A dialogue. `database` is `EXAMPLE` or a path."""

    id: str
    database: str
    turns: tuple[Turn, ...]

    def turn_id(self, number: int) -> str:
        """The id that records use for the turn of this number, from 1: d01/2."""
        return f"{self.id}/{number}"

    @property
    def turn_ids(self) -> list[str]:
        """The ids of all turns."""
        return [self.turn_id(number) for number in range(1, len(self.turns) + 1)]


_DIALOGUE = TypeAdapter(Dialogue)


def read_dialogues(file: Path) -> list[Dialogue]:
    """The dialogues in the file's order. Raises `DatasetError`, whose one-line message says which line is wrong and why."""
    if not file.is_file():
        raise DatasetError(f"{file} is not there: name a file of dialogues, one JSON object a line")
    found: dict[str, Dialogue] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        dialogue = _dialogue(line, f"{file}, line {number}")
        if dialogue.id in found:
            raise DatasetError(f"{file}, line {number}: there is a dialogue {dialogue.id} already")
        found[dialogue.id] = _placed(dialogue, file.parent, f"{file}, line {number}")
    if not found:
        raise DatasetError(f"{file} holds no dialogue")
    return list(found.values())


def authored_dialogues(data: Path, part: Part) -> list[Dialogue]:
    """The dialogues of a part of the authored data (see `eval.datasets.official`). Raises `DatasetError`."""
    return [
        Dialogue(f"{name}/{number}", str(file), tuple(Turn(**turn) for turn in line["turns"]))
        for name in part_of(data, part)
        for file in (made_database(data / name),)
        for number, line in enumerate(json_lines(data / name / "dialogues.jsonl"), 1)
    ]


def _dialogue(line: str, where: str) -> Dialogue:
    try:
        dialogue = _DIALOGUE.validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise DatasetError(f"{where}: {_place(first['loc'])}{first['msg']}") from error
    if not dialogue.turns:
        raise DatasetError(f"{where}: the dialogue has no turns")
    for number, turn in enumerate(dialogue.turns, 1):
        if turn.continues is not None and not 1 <= turn.continues < number:
            raise DatasetError(f"{where}: turn {number} continues {turn.continues}, which is no turn before it")
    return dialogue


def _place(path: Sequence[int | str]) -> str:
    """A prefix for messages that says which part of the line is wrong: "turn 2, sql: "."""
    parts = [f"turn {part + 1}" if isinstance(part, int) else part for part in path if part != "turns"]
    return f"{', '.join(parts)}: " if parts else ""


def _placed(dialogue: Dialogue, folder: Path, where: str) -> Dialogue:
    """The dialogue with its database's path resolved against `folder`."""
    if dialogue.database == EXAMPLE:
        return dialogue
    path = folder / dialogue.database
    if not path.exists():
        raise DatasetError(f"{where}: there is no database {path}")
    return replace(dialogue, database=str(path))


def fingerprint(dialogues: Sequence[Dialogue]) -> str:
    """Number and digest of the dialogues, so that a run is continued only with the same ones."""
    keys = [[dialogue.id, [asdict(turn) for turn in dialogue.turns]] for dialogue in dialogues]
    return f"{len(dialogues)}:{hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One line of records.jsonl; `id` is "d01/2", with the turn's number from 1.

    `correct` is None if the turn has no gold query; `error` is why the agent's SQL returned no rows when it was scored, and
    `prediction_error` is the agent's own error. `continues` is the number of the turn that the agent continued, `expected`
    the one that the file names; None if the question was read as, or is meant as, self-contained. `confidence` and
    `probably_wrong` are the answer's.
    """

    id: str
    kind: str
    question: str
    gold: str | None
    sql: str
    correct: bool | None
    error: str | None
    expected: int | None
    continues: int | None
    wall_ms: float
    new_tokens: int
    target_forwards: int
    steps: list[dict[str, Any]]
    prediction_error: str | None
    confidence: float | None = None
    probably_wrong: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The record in a line. Raises KeyError for a missing field; ignores unknown ones."""
        return cls(**known_fields(cls, values))


def summarise(dialogues: Sequence[Dialogue], records: Sequence[TurnRecord]) -> dict[str, Any]:
    """What summary.json holds. `n` counts the turns with a gold query, and `ex` is over these; `turns` counts all turns, and
    `continued_right` is over these. A dialogue is right if all its turns with a gold query are.
    """
    scored = [record for record in records if record.correct is not None]
    correct = sum(record.correct is True for record in scored)
    whole = _whole(dialogues, records)
    right = sum(record.continues == record.expected for record in records)
    return {
        "turns": len(records),
        "n": len(scored),
        "ex": share(correct, len(scored)),
        "ex_ci95": wilson_95(correct, len(scored)),
        "by_kind": {
            kind: _kind([r for r in records if r.kind == kind]) for kind in dict.fromkeys(r.kind for r in records)
        },
        "dialogues": len(dialogues),
        "dialogues_right": share(sum(whole), len(whole)),
        "continued_right": share(right, len(records)),
        "continued_right_ci95": wilson_95(right, len(records)),
        "continued_wrong": confusion(records),
        "headed": _headed(scored),
        "invalid_sql_rate": share(sum(record.error is not None for record in scored), len(scored)),
        "mean_ms": mean([record.wall_ms for record in records]),
        "p95_ms": percentile([record.wall_ms for record in records], 95),
    }


def _headed(scored: Sequence[TurnRecord]) -> Mapping[str, int]:
    """How many right and wrong answers there are, and how many of each were headed "Probably wrong"."""
    right, wrong = ([one for one in scored if one.correct is kind] for kind in (True, False))
    return {
        "right": len(right),
        "right_and_headed": sum(one.probably_wrong for one in right),
        "wrong": len(wrong),
        "wrong_and_headed": sum(one.probably_wrong for one in wrong),
        "wrong_and_failed": sum(one.prediction_error is not None for one in wrong),
    }


def in_short(records: Sequence[TurnRecord], figures: Mapping[str, int]) -> list[str]:
    """Each wrong answer in a line, and all of them in the last."""
    wrong = [one for one in records if one.correct is False]
    lines = [f"{_mark(one)}  {one.question}  →  {one.sql or one.prediction_error}" for one in wrong]
    told = f"{figures['right']} right, {figures['wrong']} wrong; headed “Probably wrong”: {figures['wrong_and_headed']} wrong"
    return [
        *lines,
        f"{told} and {figures['right_and_headed']} right; {figures['wrong_and_failed']} wrong ones gave no answer",
    ]


def _mark(record: TurnRecord) -> str:
    if record.prediction_error is not None:
        return "no answer     "
    return "probably wrong" if record.probably_wrong else "wrong         "


def confusion(records: Sequence[TurnRecord]) -> Mapping[str, int]:
    """How many turns were read wrongly, by kind of mistake."""
    pairs = [(record.expected, record.continues) for record in records]
    return {
        "leaning_taken_as_standalone": sum(expected is not None and taken is None for expected, taken in pairs),
        "standalone_taken_as_leaning": sum(expected is None and taken is not None for expected, taken in pairs),
        "wrong_turn": sum(None not in (expected, taken) and expected != taken for expected, taken in pairs),
    }


def _whole(dialogues: Sequence[Dialogue], records: Sequence[TurnRecord]) -> list[bool]:
    wrong = {record.id for record in records if record.correct is False}
    return [wrong.isdisjoint(dialogue.turn_ids) for dialogue in dialogues]


def _kind(records: Sequence[TurnRecord]) -> dict[str, Any]:
    """The figures of one kind of turn; `ex` is None if none of them has a gold query."""
    scored = [record for record in records if record.correct is not None]
    return {
        "turns": len(records),
        "n": len(scored),
        "ex": share(sum(record.correct is True for record in scored), len(scored)),
        "continued_right": share(sum(record.continues == record.expected for record in records), len(records)),
    }
