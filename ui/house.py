"""What all who use the chat share: models, their turns at them, the archive. And who is here: the sessions."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any, Protocol

from agent.archive import Archive
from agent.assemble import ModelChoice
from agent.audit import AuditLog
from agent.knowledge import Knowledge
from agent.toolbox import AgentOptions, Toolbox
from agent.turns import Turns
from decoding.batching import SEATS
from tools.database import Database
from tools.result import Limits
from tools.scratch import new_folder, remove_folder
from ui.session import Session
from ui.settings import Settings


class Loaded(Protocol):
    """A loaded model, as `agent.assemble.LoadedModel` is one."""

    def with_choice(self, choice: ModelChoice) -> "Loaded":
        """The same model under another choice of decoder, profile and temperature."""
        ...

    def toolbox(self, database: Database, options: AgentOptions, limits: Limits) -> Toolbox: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What guests may do. upload_mb: most that one person's files may weigh together."""

    upload_mb: int = 200
    urls: bool = True  # open databases by URL
    models: bool = True  # load other models
    most_rows: int = 1_000_000  # that an export may have
    most_deadline_s: float = 120.0  # of one query
    question_s: float = 300.0  # then a question is stopped
    most_sessions: int = 200


class Full(RuntimeError):
    """Nobody else can be let in at present."""


class House:
    """One per server. `load` makes a model from a choice; the two newest models stay loaded."""

    def __init__(
        self,
        choice: ModelChoice,
        archive: Archive,
        load: Callable[[ModelChoice], Loaded],
        open_default: Callable[[], Database],
        rules: Rules = Rules(),
        facts: dict[str, Any] | None = None,
        log: AuditLog | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        """`knowledge` is of the database that `open_default` opens."""
        self.choice, self.archive, self.rules, self.facts, self.log = choice, archive, rules, facts or {}, log
        self.knowledge = knowledge or Knowledge()
        self.turns = Turns(SEATS)
        self._load, self._open_default = load, open_default
        self._loaded: dict[str, Loaded] = {}
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

    def _model(self, choice: ModelChoice) -> Loaded:
        with self._loading:
            key = choice.model
            if key not in self._loaded:
                while len(self._loaded) > 1:
                    self._loaded.pop(next(name for name in self._loaded if name != self.choice.model))
                self._loaded[key] = self._load(choice)
            return self._loaded[key]
