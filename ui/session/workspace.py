"""What everybody who uses the chat shares: the loaded models, the archive and the open sessions."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path
from time import monotonic
from typing import Any

from agent.archive import Archive
from agent.assemble import LoadedModel, ModelChoice
from agent.context import AgentContext
from agent.observe.audit import AuditLog
from agent.prompts.knowledge import Knowledge
from decoding.errors import ModelError
from tools.databases.database import Database
from ui.session.kept import Busy, Conversations
from ui.session.services import GuestRules, KeptFiles, OwnFiles, Settings
from ui.session.session import Session

NO_PAGE_S, GONE_S = 5.0, 60.0
"""How long a session without an open page stays where room is needed, and where it is not."""
IDLE_S, AWAY_S = 1800.0, 24 * 3600.0
"""The same for a session whose page is open and does nothing."""


class Full(RuntimeError):
    """Nobody else can be let in at present."""


class NotYours(RuntimeError):
    """A session has another owner."""


class Workspace:
    """One per server. `load` makes a model from a choice; the two newest models stay loaded."""

    def __init__(
        self,
        choice: ModelChoice,
        archive: Archive,
        load: Callable[[ModelChoice], LoadedModel],
        open_default: Callable[[], Database],
        rules: GuestRules = GuestRules(),
        facts: dict[str, Any] | None = None,
        log: AuditLog | None = None,
        knowledge: Knowledge | None = None,
        kept: Path | None = None,
    ) -> None:
        """`knowledge` is of the database that `open_default` opens. `kept`: the folder in which files stay for a week; without
        it they are gone with the program."""
        self.choice, self.archive, self.rules, self.facts, self.log = choice, archive, rules, facts or {}, log
        self.conversations = Conversations(archive)
        self.most_runs = 64  # questions that are answered at a time; `ui.page.serve.Serving` says how many
        self.knowledge = knowledge or Knowledge()
        self._load, self._open_default = load, open_default
        self._loaded: dict[str, LoadedModel] = {}
        self._loading, self._door = threading.Lock(), threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._open_pages: Counter[str] = Counter()
        self._leaving: set[str] = set()  # sessions whose page is gone while a question is answered
        self.files = OwnFiles(rules.upload_mb)
        self.kept_files = KeptFiles(kept or self.files.root / "kept", rules.upload_mb)

    def warm(self) -> None:
        """Load the model before anybody asks."""
        self._model(self.choice)

    def default_settings(self) -> Settings:
        """What a session begins with: what the server was started with."""
        options = ",".join(f"{name}={value}" for name, value in self.choice.decoder_options.items())
        return Settings(
            model=self.choice.model,
            decoder=self.choice.decoder_name,
            options=options,
            temperature=self.choice.temperature,
        )

    def toolbox(self, settings: Settings, database: Database) -> AgentContext:
        """What a question is answered with. Raises ModelError, UnknownMethod, ValueError."""
        choice = settings.choice(self.choice)
        limits = settings.limits()
        limits = changed(limits, deadline_s=min(limits.deadline_s, self.rules.most_deadline_s))
        limits = changed(limits, max_rows=min(limits.max_rows, self.rules.most_rows))
        model = self._model(choice).with_choice(choice)
        return model.toolbox(database, settings.agent_options(), limits)

    def open_default(self) -> Database:
        return self._open_default()

    def session(self, name: str, owner: str) -> Session:
        """The session of that name, opened when it is new. Raises Full, NotYours."""
        with self._door:
            leaving = [] if name in self._sessions else self._to_leave(owner)
            if name not in self._sessions:
                if len(self._sessions) - len(leaving) >= self.rules.most_sessions:
                    raise Full("too many people are here; try again later")
                self._sessions[name] = Session(self, owner, self.files.new_folder(owner))
            session = self._sessions[name]
        for other in leaving:
            self.leave(other)
        if session.owner != owner:
            raise NotYours("this session is somebody else's: reload the page")
        return session

    def find(self, name: str, owner: str) -> Session | None:
        """The owner's session of that name, if there is one."""
        session = self._sessions.get(name)
        if session is None or session.owner != owner:
            return None
        session.used_s = monotonic()
        return session

    def is_here(self, owner: str) -> bool:
        """Whether the owner has a session."""
        return any(session.owner == owner for session in list(self._sessions.values()))

    @contextmanager
    def page_open(self, name: str) -> Iterator[None]:
        """For as long as the page of the session of that name is open."""
        self._open_pages[name] += 1
        try:
            yield
        finally:
            self._open_pages[name] -= 1
            if not self._open_pages[name]:
                del self._open_pages[name]

    def leave(self, name: str) -> None:
        """Close a session and remove its files, once nothing runs in it."""
        self._leaving.add(name)
        self.run_ended()

    def run_ended(self) -> None:
        """See `ui.session.services.Services.run_ended`."""
        for name in list(self._leaving):
            session = self._sessions.get(name)
            if session is None or not session.running:
                self._leaving.discard(name)
                self._close(name)

    def _close(self, name: str) -> None:
        with self._door:
            session = self._sessions.pop(name, None)
        if session is None:
            return
        session.close()
        shutil.rmtree(session.folder, ignore_errors=True)
        with self._door:
            if not self.is_here(session.owner):
                self.files.remove(session.owner)

    def check_room(self, owner: str) -> None:
        """See `ui.session.services.Services.check_room`."""
        sessions = list(self._sessions.values())
        if sum(session.running for session in sessions if session.owner == owner) >= self.rules.most_runs_each:
            raise Busy("Still at work on your other questions; stop one of them first.")
        if sum(session.running for session in sessions) >= self.most_runs:
            raise Busy("Too many questions are being answered; try again in a minute.")

    def _to_leave(self, owner: str) -> list[str]:
        """Sessions to close before a new one: those that nobody uses, the owner's oldest beyond what each may have, and,
        where the workspace is full, the one that has been unused for longest.
        """
        unused = sorted(self._sessions, key=lambda name: self._sessions[name].used_s)
        unused = [name for name in unused if not self._sessions[name].is_busy]
        leaving = [name for name in unused if self._is_unused_for(name, GONE_S, AWAY_S)]
        own = [name for name, session in self._sessions.items() if session.owner == owner and name not in leaving]
        if len(own) >= self.rules.most_sessions_each:
            leaving += [name for name in unused if name in own][:1]
        if len(self._sessions) - len(leaving) >= self.rules.most_sessions:
            leaving += [
                name for name in unused if name not in leaving and self._is_unused_for(name, NO_PAGE_S, IDLE_S)
            ][:1]
        return leaving

    def _is_unused_for(self, name: str, without_page_s: float, with_page_s: float) -> bool:
        since_s = monotonic() - self._sessions[name].used_s
        return since_s > (with_page_s if name in self._open_pages else without_page_s)

    def close(self) -> None:
        for name in list(self._sessions):
            self._close(name)
        self.files.close()
        self.archive.close()

    def _model(self, choice: ModelChoice) -> LoadedModel:
        """Raises ModelError for another model than the server's own where these may not be loaded."""
        if choice.model != self.choice.model and not self.rules.models:
            raise ModelError(f"this server loads no other model than {self.choice.model}")
        with self._loading:
            key = choice.model
            if key not in self._loaded:
                while len(self._loaded) > 1:
                    self._loaded.pop(next(name for name in self._loaded if name != self.choice.model))
                self._loaded[key] = self._load(choice)
            return self._loaded[key]
