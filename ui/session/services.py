"""What a session uses of the workspace that everybody shares, and what guests may do there."""

from dataclasses import dataclass
from typing import Protocol

from agent.conversation.archive import Archive
from agent.graph.toolbox import Toolbox
from agent.observe.audit import AuditLog
from agent.prompts.knowledge import Knowledge
from tools.databases.database import Database
from ui.session.kept import Conversations
from ui.session.own_files import OwnFiles
from ui.session.settings import Settings


@dataclass(frozen=True, slots=True)
class GuestRules:
    """What guests may do. upload_mb, export_mb, chats_mb: most that one person's files, exports and stored
    conversations may weigh together."""

    upload_mb: int = 200
    export_mb: int = 200
    chats_mb: int = 200
    urls: bool = True  # open databases by URL
    models: bool = True  # load other models
    most_rows: int = 1_000_000  # that an export may have
    most_deadline_s: float = 120.0  # of one query
    question_s: float = 300.0  # then a question is stopped
    most_sessions: int = 200
    most_sessions_each: int = 20  # tabs of one owner
    most_runs_each: int = 8  # questions of one owner that are answered at a time


class Services(Protocol):
    """The workspace as a session sees it."""

    archive: Archive
    conversations: Conversations
    files: OwnFiles
    rules: GuestRules
    log: AuditLog | None
    knowledge: Knowledge

    def default_settings(self) -> Settings:
        """What a session begins with."""
        ...

    def toolbox(self, settings: Settings, database: Database) -> Toolbox:
        """What a question is answered with. Raises ModelError, UnknownMethod, ValueError."""
        ...

    def open_default(self) -> Database:
        """The database that every session begins with."""
        ...

    def check_room(self, owner: str) -> None:
        """Raises Busy where as many questions are being answered as may be, of this owner or in all."""
        ...

    def run_ended(self) -> None:
        """Sessions leave whose pages are gone, and in which nothing runs any more."""
        ...
