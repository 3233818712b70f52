"""Asks dialogues turn by turn and records what came.

Holds a dialogue's conversation turn by turn. Scores nothing.

Asks dialogues turn by turn, compares each answer with the rows of the gold query, and records each turn.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from agent.assemble import LoadedModel
from agent.candidates import entity_of
from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from decoding.checkpoints.cache_folder import cache_root
from eval.accuracy.dialogue_files import EXAMPLE, Dialogue, Turn, TurnRecord, fingerprint, summarise
from eval.accuracy.predict import predicted, seeded
from eval.accuracy.record import Prediction, RecordLog
from eval.accuracy.run import AccuracyBar
from eval.datasets.official import DatasetError
from eval.scoring.run_query import QueryFailedError, comparable, rows_of
from eval.scoring.spider_rules import order_matters, spider_match
from tools.databases.database import Database
from tools.databases.open_database import open_database
from tools.example.build import example_database
from tools.result import Limits, Result


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
            self._open[dialogue.database] = open_database(path)
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
