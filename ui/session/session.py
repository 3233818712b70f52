"""One person at the chat: the open database, the conversation, and what is asked of them. No component, no HTML."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from agent.conversation.conversation import Again, Conversation
from agent.conversation.race import Lane, NoRace, race
from agent.conversation.records import records
from agent.graph.toolbox import StopSignal, Toolbox
from agent.observe.audit import Trail
from agent.observe.events import Asked, Event, Failed, Judged, Ran
from agent.state import Reading
from decoding.engine.recall import Recall
from decoding.engine.target import PromptTooLong
from decoding.errors import ModelError
from decoding.serving.model_queue import Stopped
from tools.databases.database import Database
from tools.databases.files.export import Format, export
from tools.result import OpenError
from ui.session.by_hand import LONGEST_SQL, STORED_ROWS, every_row, measured, ran_by_hand
from ui.session.conversation_view import ConversationView
from ui.session.kept import SHARED, Busy, KeptConversation, check_open, first_turns, missing, read_shared, write_shared
from ui.session.open_data import OpenData, Opened, opened_url
from ui.session.own_files import EXPORTS, fresh_export
from ui.session.retry import Retry, remember, retry_of
from ui.session.services import Services

EXAMPLE = "example"
Cells = Sequence[Sequence[Any]]


class Session:
    """Owner of its database, of the events of its conversation, and of the newest result."""

    def __init__(self, workspace: Services, owner: str, folder: Path) -> None:
        self.workspace, self.owner, self.folder = workspace, owner, folder
        self.used_s = monotonic()
        self.settings = workspace.default_settings()
        self.data = OpenData(workspace.rules, folder / "data", Opened(workspace.open_default(), EXAMPLE))
        self.wants = ""  # the source of the conversation that is shown, where that is not the one that is open
        self.kept = KeptConversation(workspace.archive, owner)
        self.view = ConversationView()
        self.whole_rows: dict[int, Cells] = {}  # the newest turn's rows as they are shown, all of them
        self._former: tuple[str | None, bool] = (None, False)  # the conversation before files came; whether it went on
        self._stop = StopSignal()
        self._recall = Recall()
        self._toolbox: Toolbox | None = None
        self._trail = Trail(workspace.log, owner, "ui") if workspace.log else None
        self._busy = threading.Lock()

    @property
    def database(self) -> Database:
        """The one that is open."""
        return self.data.now.database

    @property
    def source(self) -> str:
        """What it was opened from."""
        return self.data.now.source

    def ask(
        self, question: str, evidence: str = "", again: int | None = None, ask_back: bool = True,
        reading: Reading | None = None, chosen: str = "", reply: str = "",
    ) -> Iterator[Event]:  # fmt: skip
        """Answer, event by event; closing the iterator stops the answering. `again`: the turn whose question is tried once
        more, in its place; its SQL does not come back. `ask_back`: unless the settings forbid it. `reading`: as it is meant.
        `chosen`: the SQL of the alternative that the asker took. `reply`: what was clicked, in words.
        """
        happened: list[Event] = []
        with self._occupied():
            try:
                wanted = Again(reading=reading, chosen=chosen)
                for event in self._asked(question, evidence, again, ask_back and again is None, wanted):
                    event = replace(event, reply=reply) if isinstance(event, Asked) else event
                    self._happens(event, happened)
                    if isinstance(event, Asked):  # a program that is killed has kept the question
                        self._store(happened)
                        happened.clear()
                    yield event
            finally:
                if self.view.turns and not self.view.turns[-1].is_over:
                    self._happens(Failed("Stopped.", stopped=True), happened)
                self._store(happened)

    @contextmanager
    def _occupied(self) -> Iterator[None]:
        """One thing at a time, and not for ever. Raises Busy, OtherData."""
        check_open(self.wants)
        if not self._busy.acquire(blocking=False):
            raise Busy("still at work on the last question; stop that first")
        self._stop.clear()
        late = threading.Timer(self.workspace.rules.question_s, self.stop)
        late.start()
        try:
            yield
        finally:
            late.cancel()
            self.stop()
            self._busy.release()

    def _happens(self, event: Event, happened: list[Event]) -> None:
        happened.append(event)
        self.view.apply(event)

    def _later(self, event: Event) -> None:
        """Something is said or done about a turn that is over."""
        self.view.apply(event)
        self._store([event])

    def _asked(self, question: str, evidence: str, again: int | None, ask_back: bool, wanted: Again) -> Iterator[Event]:
        started = False
        try:
            retry = None if again is None else retry_of(self.view.turns, again)
            conversation = self._conversation(retry, ask_back)
            for event in records(conversation, question, evidence, STORED_ROWS, retry.again if retry else wanted):
                started = True
                yield event
            if conversation.toolbox.result is not None:
                rows = (conversation.toolbox.shown or conversation.toolbox.result).rows
                self.whole_rows = {len(self.view.turns) - 1: rows}
        except (Stopped, ModelError, OpenError, PromptTooLong, ValueError) as error:
            if not started:
                yield Asked(question, evidence, self.database.name)
            yield Failed("Stopped.", stopped=True) if isinstance(error, Stopped) else Failed(f"{error}")

    @property
    def is_busy(self) -> bool:
        """Whether a question is being answered, or a race is on."""
        return self._busy.locked()

    def stop(self) -> None:
        """Stop decoder and query; what runs ends soon after."""
        self._stop.stop()
        self.database.interrupt()

    def run_sql(self, sql: str, turn: int) -> Ran:
        """Run SQL by hand under the model's guard and limits; what is too long is not kept. Raises OtherData."""
        check_open(self.wants)
        ran, result = ran_by_hand(self._trail, self.database, sql, self.settings.limits(), turn)
        if ran.sql:
            self.whole_rows = self.whole_rows if result is None else {turn: result.rows}
            self._later(ran)
        return ran

    def show_own(self, turn: int) -> None:
        """Back from SQL that was run by hand to what the answer itself found."""
        self.whole_rows = {}
        self._later(Ran(turn, ""))

    def judge(self, turn: int, liked: bool | None) -> None:
        self._later(Judged(turn, liked))

    def export(self, sql: str, kind: Format) -> Path:
        """Every row of the query as a file, in the place of the last one; an answer's own with its headings. Raises OpenError,
        ExportError."""
        check_open(self.wants)
        if len(sql) > LONGEST_SQL:
            raise OpenError(f"a statement may have {LONGEST_SQL:,} characters")
        path = fresh_export(self.folder, f"result.{kind}")
        left = (self.workspace.rules.export_mb << 20) - self.workspace.files.exported(self.owner)
        limits = replace(self.settings.limits(), max_rows=self.workspace.rules.most_rows)
        is_answer = any(sql in (turn.sql, turn.laid_out) for turn in self.view.turns)
        export(every_row(self._trail, self.database, sql, limits, as_answered=is_answer), path, kind, left)
        return path

    def race(self, step: str, methods: Sequence[str]) -> Iterator[list[Lane]]:
        """Race the newest answer's step. Raises NoRace, Stopped, Busy."""
        if self._toolbox is None:
            raise NoRace("ask a question first: the race decodes a step of its answer again")
        with self._occupied():
            yield from race(self._toolbox, step, methods)

    @property
    def can_measure(self) -> bool:
        """Whether steps of the newest answer are estimated, and are still at hand."""
        return not self.wants and self._toolbox is not None and any(turn.estimated for turn in self.view.turns[-1:])

    def measure(self) -> None:
        """Time the estimated steps of the newest answer with plain decoding. Raises NoRace, Stopped, Busy, OtherData."""
        if self._toolbox is None:
            raise NoRace("ask a question first: only the newest answer's steps can be measured")
        with self._occupied():
            for event in measured(self._toolbox, self.view.turns):
                self._later(event)

    def take(self, *, beside: bool) -> None:
        """Ask the offered files from now on. `beside` the open ones, the conversation goes on. Raises OpenError."""
        waits = self.data.offered is not None and self.wants == self.data.offered.opened.source  # for just these
        goes_on = beside and bool(self.data.now.files) and not self.wants
        self.stop()
        self.data.take(beside=beside and not waits)
        self._former = (self.kept.id, goes_on)
        self._opened(goes_on)

    def undo(self) -> None:
        """Go back to what was open before the newest files were taken in, and to the conversation about it."""
        self.stop()
        self.data.undo()
        self._opened(self._former[1] and self.kept.id == self._former[0])
        if (former := self._former[0]) and self.kept.id != former:
            self.resume(former)

    def open_url(self, url: str) -> None:
        """Raises OpenError."""
        self._open(opened_url(url, self.workspace.rules))

    def open_example(self) -> None:
        """Raises OpenError."""
        self._open(Opened(self.workspace.open_default(), EXAMPLE))

    def _open(self, opened: Opened) -> None:
        self.stop()
        self.data.open(opened)
        self._opened(goes_on=False)

    def _opened(self, goes_on: bool) -> None:
        """Another database is open. The conversation goes on, if it can; otherwise a new one begins."""
        self._recall, self._toolbox = Recall(), None
        if goes_on:
            self.whole_rows = {}
            self.kept.move(self.source)
        elif self.wants and self.wants in (self.source, self.database.name):
            self.wants, self.whole_rows = "", {}
        else:
            self.begin()

    def begin(self) -> None:
        """A new conversation; it is stored once something is asked."""
        self.kept.id, self.view, self.whole_rows, self.wants = None, ConversationView(), {}, ""

    def resume(self, conversation: str) -> bool:
        """Go on with a stored conversation; whether its database is the one that is open."""
        entry = self.workspace.archive.entry(self.owner, conversation)
        if entry is None:
            return True
        if entry.source == EXAMPLE and self.source != EXAMPLE:
            self.open_example()
        self.kept.id, self.whole_rows = conversation, {}
        self.view = ConversationView(self.kept.events())
        if self.view.turns and not self.view.turns[-1].is_over:
            self.view.apply(Failed("No answer was kept: there was no room, the program ended, or it is still at work."))
        self.wants = missing(entry.source, self.view.turns, self.source, self.database.name)
        return not self.wants

    def branch(self, turns: int) -> None:
        """Go on in a copy of the conversation that ends after `turns` turns; the original stays as it is. Raises OtherData."""
        check_open(self.wants)
        kept = first_turns(self.kept.events(), turns)
        self.begin()
        self.view = ConversationView(kept)
        self._store(kept)

    def delete(self, conversation: str) -> None:
        self.kept.delete(conversation)
        if conversation == self.kept.id:
            self.begin()

    def restore(self) -> None:
        """Bring back the conversation that was deleted last, and show it."""
        if restored := self.kept.restore():
            self.resume(restored)

    def share(self) -> Path:
        """The conversation as a file of events, one a line."""
        path = self.folder / EXPORTS / "conversation.jsonl"
        write_shared(self.kept.events(), path)
        return path

    def replay(self, path: Path) -> None:
        """Show a shared file as a new conversation of one's own. Raises EventError."""
        events = read_shared(path)
        self.begin()
        self.view = ConversationView(events)
        self._store(events, source=f"{SHARED}{path.name}")
        self.wants = missing(SHARED, self.view.turns, self.source, self.database.name)

    def close(self) -> None:
        self.stop()
        self.data.close()

    def _conversation(self, retry: Retry | None, ask_back: bool) -> Conversation:
        settings = replace(self.settings, clarify=self.settings.clarify and ask_back)
        if retry and retry.sampled:
            settings = replace(settings, temperature=max(settings.temperature, 0.7), seed=len(self.view.turns))
        toolbox = self.workspace.toolbox(settings, self.database)
        toolbox.stop, toolbox.recall, toolbox.trail = self._stop, self._recall, self._trail
        if self.source == EXAMPLE:
            toolbox.options = replace(toolbox.options, knowledge=self.workspace.knowledge)
        self._toolbox = toolbox
        conversation = Conversation(toolbox)
        remember(conversation, retry.before if retry else self.view.turns)
        return conversation

    def _store(self, events: Sequence[Event], source: str | None = None) -> None:
        self.kept.store(events, source or self.source)
