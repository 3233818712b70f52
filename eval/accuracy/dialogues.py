"""Dialogues: their files, and how answers to their turns are scored.

Reads a file of dialogues, one per line, as JSON. Opens no database.

    {"id": "d01", "database": "example", "turns": [{"question": "How many artists are there?",
     "sql": "SELECT COUNT(*) FROM artists", "kind": "opening", "continues": null}, ...]}

`database` is "example" or a path relative to the file. `sql` is the gold query, in the dialect of `engine` ("sqlite", say) or,
if the line names none, of the engine that `open_database` takes for that database; null if the turn only says "start over".
`continues` is the number, from 1, of the earlier turn that the question continues; null if it is self-contained.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from agent.assemble import LoadedModel
from agent.candidates import entity_of
from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from decoding.checkpoints.cache_folder import cache_root
from eval.accuracy.predict import predicted, seeded
from eval.accuracy.record import Prediction, RecordLog, known_fields
from eval.accuracy.run import AccuracyBar
from eval.accuracy.summary import mean, percentile, share, wilson_95
from eval.datasets.authored import Part, made_database, read_authored
from eval.datasets.official import DatasetError
from eval.scoring.run_query import QueryFailedError, comparable, rows_of
from eval.scoring.spider_rules import order_matters, spider_match
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.result import Limits, Result

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
    """A dialogue. `database` is `EXAMPLE` or a path, `engine` the engine whose dialect its gold queries have."""

    id: str
    database: str
    turns: tuple[Turn, ...]
    engine: str = "auto"

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
        Dialogue(f"{each.name}/{number}", str(file), tuple(Turn(**turn) for turn in line["turns"]), "sqlite")
        for each in read_authored(data, part)
        for file in (made_database(each),)
        for number, line in enumerate(each.dialogues, 1)
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


class DialogueChat:
    """The conversation of one dialogue. Callers must pass all turns in order, by their number from 1, so that a question's
    number in the conversation is that of its turn."""

    def __init__(self, dialogue: Dialogue, toolbox: AgentContext) -> None:
        self._dialogue, self._options = dialogue, toolbox.options
        self._conversation = Conversation(toolbox)

    def ask(self, number: int) -> Prediction:
        """The agent's own answer, which stays in the conversation if its SQL ran."""
        self._conversation.toolbox.options = seeded(self._options, self._dialogue.turn_id(number))
        return predicted(lambda: self._conversation.ask(self._dialogue.turns[number - 1].question))

    def give(self, number: int) -> None:
        """Add the turn to the conversation with its gold query. A turn without one is asked, since it may be "start over"."""
        turn = self._dialogue.turns[number - 1]
        if turn.sql is None:
            self.ask(number)
        else:
            result = self._conversation.toolbox.database.execute(turn.sql)
            entity = entity_of(result.rows, len(result.rows)) if isinstance(result, Result) else None
            self._conversation.remember(turn.question, turn.sql, entity=entity)


FirstTurns = Literal["own", "gold"]


def ask_dialogues(
    dialogues: Sequence[Dialogue],
    load: Callable[[], LoadedModel],
    options: AgentOptions,
    out: Path,
    *,
    first_turns: FirstTurns = "own",
    names: Mapping[str, str],
    settings: Mapping[str, Any],
    timeout_s: float = 30.0,
    progress: bool = True,
) -> dict[str, Any]:
    """Ask every dialogue that has no records in `out` yet, and return the summary of all. Writes records.jsonl, settings.json
    and summary.json to `out`.

    `first_turns`: what precedes a turn in its conversation, the agent's own answers, right or wrong, or the gold queries.
    `names` (dataset, model, decoder) go into the summary; `settings` (JSON values) are whatever else the answers depend on.
    Raises `ResumeError` if `out` holds another run, and `DatasetError` if a gold query fails.
    """
    figures = {"timeout_s": timeout_s, "first_turns": first_turns, "dialogues": fingerprint(dialogues)}
    every_setting = {**settings, **names, **figures}
    with closing(Databases(dialogues, timeout_s)) as databases:
        log = RecordLog(out, every_setting, TurnRecord)
        try:
            _ask(dialogues, Asker(load, options, databases, timeout_s, first_turns), log, progress)
        finally:
            log.close()
    records = log.in_order([name for dialogue in dialogues for name in dialogue.turn_ids])
    summary = {**names, **summarise(dialogues, records), "settings": every_setting}
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _ask(dialogues: Sequence[Dialogue], asker: "Asker", log: RecordLog[TurnRecord], progress: bool) -> None:
    """Ask and record the dialogues. A dialogue is recorded when it is complete; if a crash cut off its records, the missing
    ones are added.
    """
    known = {record.id for record in log.records}
    with AccuracyBar(sum(len(dialogue.turns) for dialogue in dialogues), progress) as bar:
        for dialogue in dialogues:
            missing = [] if known.issuperset(dialogue.turn_ids) else list(asker.records(dialogue))
            for record in missing:
                if record.id not in known:
                    log.append(record)
            bar.show(len(log.records), [record.correct for record in log.records if record.correct is not None])


class Databases:
    """The databases of the dialogues, each opened once."""

    def __init__(self, dialogues: Sequence[Dialogue], timeout_s: float) -> None:
        """Open the databases and run the gold queries. Raises `DatasetError` if one does not run, and `OpenError`."""
        self._timeout_s = timeout_s
        self._open: dict[str, Database] = {}
        try:
            for dialogue in dialogues:
                self._check(dialogue)
        except BaseException:
            self.close()
            raise

    def of(self, dialogue: Dialogue) -> Database:
        """The dialogue's database."""
        if dialogue.database not in self._open:
            path = example_database(cache_root()) if dialogue.database == EXAMPLE else dialogue.database
            self._open[dialogue.database] = open_database(path, engine=dialogue.engine)
        return self._open[dialogue.database]

    def close(self) -> None:
        """Close all of them."""
        for database in self._open.values():
            database.close()

    def _check(self, dialogue: Dialogue) -> None:
        for number, turn in enumerate(dialogue.turns, 1):
            try:
                if turn.sql is not None:
                    rows_of(self.of(dialogue), turn.sql, self._timeout_s)
            except QueryFailedError as error:
                raise DatasetError(f"dialogue {dialogue.id}, turn {number}: the gold query fails: {error}") from error


class Asker:
    """Puts a dialogue's turns to the agent and judges its answers."""

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        options: AgentOptions,
        databases: Databases,
        timeout_s: float,
        first_turns: FirstTurns,
    ) -> None:
        self._load, self._options, self._databases = load, options, databases
        self._timeout_s, self._first_turns = timeout_s, first_turns
        self._loaded: LoadedModel | None = None

    def records(self, dialogue: Dialogue) -> Iterator[TurnRecord]:
        """The record of each turn, in one conversation, or each in a new one after the gold queries of the turns before it."""
        database, chat = self._databases.of(dialogue), self._chat(dialogue)
        for number, turn in enumerate(dialogue.turns, 1):
            if self._first_turns == "gold":
                chat = self._chat(dialogue)
                for earlier in range(1, number):
                    chat.give(earlier)
            yield _record(dialogue.turn_id(number), turn, chat.ask(number), database, self._timeout_s)

    def _chat(self, dialogue: Dialogue) -> DialogueChat:
        self._loaded = self._loaded or self._load()
        limits = Limits(deadline_s=self._timeout_s)
        return DialogueChat(dialogue, self._loaded.toolbox(self._databases.of(dialogue), self._options, limits))


def _record(name: str, turn: Turn, given: Prediction, database: Database, timeout_s: float) -> TurnRecord:
    correct, error = (None, None) if turn.sql is None else judged(turn.sql, given.sql, database, timeout_s)
    return TurnRecord(
        id=name,
        kind=turn.kind,
        question=turn.question,
        gold=turn.sql,
        sql=given.sql,
        correct=correct,
        error=error,
        expected=turn.continues,
        continues=given.continues,
        wall_ms=given.wall_ms,
        new_tokens=given.new_tokens,
        target_forwards=given.target_forwards,
        steps=given.steps,
        prediction_error=given.error,
        confidence=given.confidence,
        probably_wrong=given.probably_wrong,
    )


def judged(gold: str, sql: str, database: Database, timeout_s: float) -> tuple[bool, str | None]:
    """Whether the rows equal the gold query's by Spider's rules, in order if it has one; and the error if there are none."""
    if not sql.strip():
        return False, "no prediction"
    wanted = comparable(rows_of(database, gold, timeout_s))
    try:
        given = comparable(rows_of(database, sql, timeout_s))
    except QueryFailedError as error:
        return False, str(error)
    return spider_match(wanted, given, order_matters(gold)), None
