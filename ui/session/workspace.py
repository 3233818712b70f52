"""What everybody who uses the chat shares: the loaded models, the archive and the open sessions."""

import threading
from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

from agent.assemble import LoadedModel, ModelChoice
from agent.conversation.archive import Archive
from agent.graph.toolbox import Toolbox
from agent.observe.audit import AuditLog
from agent.prompts.knowledge import Knowledge
from tools.databases.database import Database
from tools.processes.temporary_folders import new_folder, remove_folder
from ui.session.services import GuestRules
from ui.session.session import Session
from ui.session.settings import Settings


class Full(RuntimeError):
    """Nobody else can be let in at present."""


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
    ) -> None:
        """`knowledge` is of the database that `open_default` opens."""
        self.choice, self.archive, self.rules, self.facts, self.log = choice, archive, rules, facts or {}, log
        self.knowledge = knowledge or Knowledge()
        self._load, self._open_default = load, open_default
        self._loaded: dict[str, LoadedModel] = {}
        self._loading, self._door = threading.Lock(), threading.Lock()
        self._sessions: dict[str, Session] = {}

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

    def toolbox(self, settings: Settings, database: Database) -> Toolbox:
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
        """The session of that name, opened when it is new. Raises Full."""
        with self._door:
            if name not in self._sessions:
                if len(self._sessions) >= self.rules.most_sessions:
                    raise Full("too many people are here; try again later")
                self._sessions[name] = Session(self, owner, new_folder())
            return self._sessions[name]

    def find(self, name: str) -> Session | None:
        """The session of that name, if there is one."""
        return self._sessions.get(name)

    def leave(self, name: str) -> None:
        """Close a session and remove its files."""
        with self._door:
            session = self._sessions.pop(name, None)
        if session is not None:
            session.close()
            remove_folder(session.folder)

    def close(self) -> None:
        for name in list(self._sessions):
            self.leave(name)
        self.archive.close()

    def _model(self, choice: ModelChoice) -> LoadedModel:
        with self._loading:
            key = choice.model
            if key not in self._loaded:
                while len(self._loaded) > 1:
                    self._loaded.pop(next(name for name in self._loaded if name != self.choice.model))
                self._loaded[key] = self._load(choice)
            return self._loaded[key]
