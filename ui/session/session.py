"""One person at the chat: the open database, the conversation, and what is asked of them. No component, no HTML."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from agent.context import AgentContext
from agent.observe.audit import Trail
from agent.observe.events import Event, Judged, Ran
from agent.race import Lane, NoRace, race
from agent.state import Reading
from tools.databases.database import Database
from tools.databases.files.export import Format, export
from tools.result import OpenError
from ui.session.conversation_view import LONGEST_SQL, ConversationView, every_row, measured, ran_by_hand
from ui.session.kept import (
    SHARED,
    Busy,
    Deleted,
    KeptConversation,
    check_open,
    first_turns,
    missing,
    named,
    read_shared,
    write_shared,
)
from ui.session.open_data import Offer, OpenData, Opened, opened_url
from ui.session.run import OTHER_DATA, STOPPED, Grounds, Question, Run
from ui.session.services import EXPORTS, Services, fresh_export

EXAMPLE = "example"
PATIENCE_S = 10.0
"""So long a run may take to end once it was stopped, before its data are closed."""


class Standing(NamedTuple):
    """What a page shows, the progress of a run apart: a page is up to date where its standing equals the session's."""

    kept: KeptConversation
    opened: Opened
    offered: Offer | None
    wants: str
    id: str | None
    turns: int
    runs: bool


class Session:
    """Owner of its database, and of which conversation is shown. What changes either is a transaction: one at a time."""

    def __init__(self, workspace: Services, owner: str, folder: Path) -> None:
        self.workspace, self.owner, self.folder = workspace, owner, folder
        self.used_s = monotonic()
        self.settings = workspace.default_settings()
        self.data = OpenData(workspace.rules, folder / "data", Opened(workspace.open_default(), EXAMPLE), self._in_use)
        self.example_name = self.data.now.database.name
        self.wants = ""  # the source of the conversation that is shown, where that is not the one that is open
        self.editing: int | None = None  # the turn of the shown conversation whose question is being changed
        self.kept = workspace.conversations.begin(owner, EXAMPLE)
        self.deleted: Deleted | None = None  # the conversation that was deleted last
        self.follower: object = None  # what brings the page up to date while something runs: the newest alone
        self._former: list[tuple[KeptConversation, bool]] = []  # before files came, the newest last; whether it went on
        self._runs: list[Run] = []
        self._trail = Trail(workspace.log, owner, "ui") if workspace.log else None
        self._changing = threading.RLock()

    @property
    def kept(self) -> KeptConversation:
        """The conversation that is shown."""
        return self._kept

    @kept.setter
    def kept(self, kept: KeptConversation) -> None:
        self._kept, self.editing = kept, None

    @property
    def view(self) -> ConversationView:
        """What is shown of it."""
        return self.kept.view

    @property
    def database(self) -> Database:
        """The one that is open."""
        return self.data.now.database

    @property
    def source(self) -> str:
        """What it was opened from."""
        return self.data.now.source

    @property
    def standing(self) -> Standing:
        """As it is now."""
        kept, data = self.kept, self.data
        return Standing(kept, data.now, data.offered, self.wants, kept.id, len(kept.view.turns), kept.run is not None)

    def ask(
        self, question: str, evidence: str = "", again: int | None = None, ask_back: bool = True,
        reading: Reading | None = None, chosen: str = "", reply: str = "",
    ) -> Iterator[Event]:  # fmt: skip
        """Answer, event by event (see `Question`). Who stops reading does not stop the run. Raises Busy, OtherData."""
        yield from self.begin_run(Question(question, evidence, again, ask_back, reading, chosen, reply)).events()

    def begin_run(self, question: Question) -> Run:
        """Begin to answer in the conversation that is shown. Raises Busy, OtherData."""
        with self._changing:
            check_open(self.wants)
            self.workspace.check_room(self.owner)
            if not self.kept.busy.acquire(blocking=False):
                raise Busy("Still at work on the last question; stop that first.")
            grounds = Grounds(self.workspace, self.settings, self.database, self.source == EXAMPLE, self._trail)
            run = Run(self.kept, question, grounds, self._interrupt, self._run_over)
            self.kept.run = run
            self._runs.append(run)
            run.begin()
            return run

    def _run_over(self, run: Run) -> None:
        self._runs.remove(run)
        self.data.sweep()

    def _in_use(self, database: Database) -> bool:
        """Whether a question is being answered on it, in whatever conversation."""
        return any(run.grounds.database is database for run in list(self._runs))

    def _interrupt(self, run: Run) -> None:
        """End the run's query. Where others are answered on the same data it ends at its deadline instead."""
        others = (each for each in list(self._runs) if each.grounds.database is run.grounds.database)
        if all(each.is_ending for each in others):
            run.grounds.database.interrupt()

    @property
    def running(self) -> int:
        """How many questions are being answered, in whatever conversation."""
        return len(self._runs)

    @property
    def is_busy(self) -> bool:
        """Whether a question is being answered, or a race is on."""
        return bool(self._runs) or self.kept.busy.locked()

    def stop(self) -> None:
        """Stop what runs in the conversation that is shown; it ends soon after."""
        if self.kept.run is not None:
            self.kept.run.stop()
        elif self.kept.busy.locked() and self.kept.toolbox is not None:
            self.kept.toolbox.stop.stop()

    def _end_runs(self, why: str) -> None:
        """End all that runs on the open data, before they are closed."""
        runs = list(self._runs)
        for run in runs:
            run.stop(why)
        self.stop()
        for run in runs:
            run.join(PATIENCE_S)

    @contextmanager
    def _decoding_again(self, toolbox: AgentContext) -> Iterator[None]:
        """The newest answer's steps are decoded again: not while a question is answered, and not for ever. Raises Busy,
        OtherData."""
        check_open(self.wants)
        kept = self.kept
        if not kept.busy.acquire(blocking=False):
            raise Busy("Still at work on the last question; stop that first.")
        toolbox.stop.clear()
        late = threading.Timer(self.workspace.rules.question_s, toolbox.stop.stop)
        late.start()
        try:
            yield
        finally:
            late.cancel()
            toolbox.stop.stop()
            kept.busy.release()

    def run_sql(self, sql: str, turn: int) -> Ran:
        """Run SQL by hand under the model's guard and limits; what is too long is not kept. Raises OtherData."""
        check_open(self.wants)
        kept = self.kept
        ran, result = ran_by_hand(self._trail, self.database, sql, self.settings.limits(), turn)
        if ran.sql:
            kept.whole_rows = kept.whole_rows if result is None else {turn: result.rows}
            kept.later(ran)
        return ran

    def show_own(self, turn: int) -> None:
        """Back from SQL that was run by hand to what the answer itself found."""
        self.kept.whole_rows = {}
        self.kept.later(Ran(turn, ""))

    def judge(self, turn: int, liked: bool | None) -> None:
        self.kept.later(Judged(turn, liked))

    def export(self, sql: str, kind: Format) -> Path:
        """Every row of the query as a file, in the place of the last one. Raises OpenError, ExportError."""
        check_open(self.wants)
        if len(sql) > LONGEST_SQL:
            raise OpenError(f"a statement may have {LONGEST_SQL:,} characters")
        path = fresh_export(self.folder, f"result.{kind}")
        left = (self.workspace.rules.export_mb << 20) - self.workspace.files.exported(self.owner)
        limits = replace(self.settings.limits(), max_rows=self.workspace.rules.most_rows)
        export(every_row(self._trail, self.database, sql, limits), path, kind, left)
        return path

    def race(self, step: str, methods: Sequence[str]) -> Iterator[list[Lane]]:
        """Race the newest answer's step. Raises NoRace, Stopped, Busy."""
        toolbox = self.kept.toolbox
        if toolbox is None:
            raise NoRace("ask a question first: the race decodes a step of its answer again")
        with self._decoding_again(toolbox):
            yield from race(toolbox, step, methods)

    @property
    def can_measure(self) -> bool:
        """Whether steps of the newest answer are estimated, and are still at hand."""
        return not self.wants and self.kept.toolbox is not None and any(turn.estimated for turn in self.view.turns[-1:])

    def measure(self) -> None:
        """Time the estimated steps of the newest answer with plain decoding. Raises NoRace, Stopped, Busy, OtherData."""
        kept, toolbox = self.kept, self.kept.toolbox
        if toolbox is None:
            raise NoRace("ask a question first: only the newest answer's steps can be measured")
        with self._decoding_again(toolbox):
            for event in measured(toolbox, kept.view.turns):
                kept.later(event)

    def take(self, *, beside: bool) -> None:
        """Ask the offered files from now on. `beside` the open ones, the conversation goes on. Raises OpenError."""
        with self._changing:
            waits = self.data.offered is not None and named(self.wants) == named(self.data.offered.opened.source)
            goes_on = beside and bool(self.data.now.files) and not self.wants
            if goes_on:
                self._end_runs(OTHER_DATA)
            self.data.take(beside=beside and not waits)
            self._former = [*self._former, (self.kept, goes_on)][-self.data.steps :]
            self._keep_files()
            self._opened(goes_on)

    def _keep_files(self) -> None:
        """For a week, so that conversations find them. That they cannot be kept is no reason not to ask them now."""
        now = self.data.now
        try:
            self.workspace.kept_files.keep(self.owner, now.source, now.files, now.choices)
        except OSError as error:
            print(f"sqlagent: files are not kept for later ({error})", file=sys.stderr)

    def open_kept(self, source: str) -> None:
        """Open what was brought earlier. Raises OpenError."""
        found = self.workspace.kept_files.find(self.owner, source)
        if found is None:
            raise OpenError("these files are kept no longer: drop them again")
        self._open(self.data.copied(*found).opened)

    def _open_data_of(self, source: str) -> None:
        """Open what a conversation is about, where that is at hand. Raises OpenError."""
        if source == EXAMPLE:
            self.open_example()
        elif self.workspace.kept_files.find(self.owner, source):
            self.open_kept(source)

    def undo(self) -> None:
        """Go back to what was open before the newest files were taken in, and to the conversation about it."""
        with self._changing:
            if not self._former:
                return
            former, went_on = self._former.pop()
            if went_on:
                self._end_runs(OTHER_DATA)
            self.data.undo()
            self._opened(went_on and self.kept is former)
            if former.id and self.kept is not former:
                self._show(former)

    def open_url(self, url: str) -> None:
        """Raises OpenError."""
        self._open(opened_url(url, self.workspace.rules))

    def open_example(self) -> None:
        """Raises OpenError."""
        self._open(Opened(self.workspace.open_default(), EXAMPLE))

    def _open(self, opened: Opened) -> None:
        with self._changing:
            if not self._in_use(self.database):
                self.database.interrupt()  # SQL that was run by hand
            self.data.open(opened)
            self._former = []
            self._opened(goes_on=False)

    def _opened(self, goes_on: bool) -> None:
        """Another database is open. The conversation goes on, if it can; otherwise a new one begins."""
        if goes_on:
            self.kept.on_other_data(self.source)
        elif self.wants and named(self.wants) in (named(self.source), self.database.name):
            if self.wants == self.kept.source:  # the same files, perhaps in a newer state
                self.kept.on_other_data(self.source)
            self.wants = ""
        else:
            self.begin()

    def begin(self) -> None:
        """A new conversation; it is stored once something is asked."""
        with self._changing:
            self.kept, self.wants = self.workspace.conversations.begin(self.owner, self.source), ""

    def resume(self, conversation: str) -> bool:
        """Go on with a stored conversation, and open its data where they are at hand; whether they are. Raises OpenError."""
        with self._changing:
            kept = self.workspace.conversations.find(self.owner, conversation)
            if kept is None:
                return True
            if kept.source != self.source:
                self._open_data_of(kept.source)
            self._show(kept)
            return not self.wants

    def _show(self, kept: KeptConversation) -> None:
        """Whether or not its data are open."""
        self.kept = kept
        self.wants = missing(kept.source, kept.view.turns, self.source, self.database.name)

    def branch(self, turns: int) -> None:
        """Go on in a copy of the conversation that ends after `turns` turns; the original stays as it is. Raises OtherData."""
        with self._changing:
            check_open(self.wants)
            events = first_turns(self.kept.events(), turns)
            self.kept = self.workspace.conversations.begin(self.owner, self.source, events)

    def delete(self, conversation: str) -> None:
        """Delete one of this owner's conversations, and end what runs in it; it can be restored until the next is deleted."""
        with self._changing:
            conversations = self.workspace.conversations
            kept = conversations.find(self.owner, conversation)
            if kept is not None and kept.run is not None:
                run = kept.run
                run.stop()
                run.join(PATIENCE_S)
            self.deleted = conversations.delete(self.owner, conversation) or self.deleted
            if conversation == self.kept.id:
                self.begin()

    def restore(self) -> str:
        """Bring back the conversation that was deleted last, and show it; why that is not possible, or an empty text."""
        with self._changing:
            if self.deleted is None:
                return ""
            gone, archive = self.deleted.entry, self.workspace.archive
            kept = self.workspace.conversations.begin(self.owner, gone.source, self.deleted.events)
            if kept.id is not None and not kept.trouble:
                self.deleted = None
                archive.rename(self.owner, kept.id, gone.title)
                archive.pin(self.owner, kept.id, bool(gone.pinned))
                self.resume(kept.id)
            return kept.trouble

    def share(self) -> Path:
        """The conversation as a file of events, one a line."""
        path = self.folder / EXPORTS / "conversation.jsonl"
        write_shared(self.kept.events(), path)
        return path

    def replay(self, path: Path) -> None:
        """Show a shared file as a new conversation of one's own. Raises EventError."""
        events = read_shared(path)
        with self._changing:
            self.kept = self.workspace.conversations.begin(self.owner, f"{SHARED}{path.name}", events)
            self.wants = missing(SHARED, self.view.turns, self.source, self.database.name)

    def close(self) -> None:
        with self._changing:
            self._end_runs(STOPPED)
            self.data.close()
