"""Reads a file of dialogues, one per line, as JSON. Opens no database.

    {"id": "d01", "database": "example", "turns": [{"question": "How many artists are there?",
     "sql": "SELECT COUNT(*) FROM artists", "kind": "opening", "continues": null}, ...]}

`database` is "example" or a path relative to the file. `sql` is the gold query in the dialect in which `open_database` opens
that database; null if the turn only says "start over". `continues` is the number, from 1, of the earlier turn that the
question continues; null if it is self-contained.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from eval.datasets.authored import Part, json_lines, made_database, part_of
from eval.datasets.official import DatasetError

BUNDLED = Path(__file__).with_name("record_shops.jsonl")
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
    """The dialogues of a part of the authored data (see `eval.datasets.authored`). Raises `DatasetError`."""
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
