"""Conversations as the archive has them, and as files that people hand to each other: events, one a line. One that cannot be
stored goes on, and is not kept."""

import hashlib
import json
import sqlite3
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from agent.archive import Archive, ArchiveFull, Entry
from agent.context import AgentContext
from agent.observe.events import Asked, Event, EventError, Failed, Judged, Measured, Ran, from_json, to_json
from decoding.engine.method import LookupCorpus
from tools.databases.files.sheets import Choices
from tools.result import OpenError
from ui.session.conversation_view import ConversationView, TurnView

LONGEST_SHARED_MB = 32
_DIGEST_MARK = " #"  # between the names of files and their digest, in a source
SHARED = "shared file: "  # in front of the file's name, as a source
Cells = Sequence[Sequence[Any]]


class Busy(RuntimeError):
    """One question at a time."""


class OtherData(OpenError):
    """The conversation is about data that are not open."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"This conversation is about {named(wanted)}: open that under Data, or begin a new conversation."
        )


def check_open(wanted: str) -> None:
    """Raises OtherData where data are wanted that are not open."""
    if wanted:
        raise OtherData(wanted)


def source_of(files: Sequence[Path], choices: Choices) -> str:
    """What data are opened from: the names, and a digest of all that is read and how."""
    digest = hashlib.sha256(json.dumps(plain_choices(choices)).encode())
    for file in files:
        with file.open("rb") as content:
            digest.update(f"{file.name}\n{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return f"files: {', '.join(file.name for file in files)}{_DIGEST_MARK}{digest.hexdigest()[:16]}"


def named(source: str) -> str:
    """A source as people read it.

    >>> named("files: a.csv, b.csv #0123456789abcdef"), named("url: shop")
    ('files: a.csv, b.csv', 'url: shop')
    """
    names, mark, digest = source.rpartition(_DIGEST_MARK)
    return names if mark and source.startswith("files: ") and len(digest) == 16 else source


def plain_choices(choices: Choices) -> list[list[str | int | bool | None]]:
    return sorted([file, sheet, choice.header, choice.keeps_total] for (file, sheet), choice in choices.items())


def missing(source: str, turns: Sequence[TurnView], open_source: str, open_name: str) -> str:
    """The source of a conversation where another one is open, otherwise an empty text. A shared file knows only the name of
    its database; files of the same names are believed to be the same data in a newer state."""
    if not source.startswith(SHARED):
        return "" if named(source) == named(open_source) else source
    name = turns[0].database if turns else ""
    return "" if name in ("", open_name) else name


@dataclass(frozen=True, slots=True)
class Deleted:
    """A conversation that is no longer in the archive."""

    entry: Entry
    events: list[Event]


class Running(Protocol):
    """A question that is being answered, as those see it who look on."""

    def stop(self) -> None:
        """The run ends soon after."""
        ...

    def join(self, seconds: float) -> None:
        """Wait for the end, at most so long."""
        ...

    def after(self, seen: int, seconds: float) -> int:
        """How many events there were, once there are more than `seen`, or the run or the time is over."""
        ...


class KeptConversation:
    """One conversation of one owner: its turns, and its place in the archive. Whoever answers a question in it holds it, and
    writes nowhere else.

    `id` is None until something is stored; `source`: what its data were opened from; `trouble` says why the last events were
    not stored, or is empty. `busy`: held by whatever decodes for it, one thing at a time; `run`: the question that is being
    answered. `whole_rows`: the newest turn's rows as they are shown, all of them; `toolbox`: what the newest question was
    answered with.
    """

    def __init__(
        self, opened: "Conversations", owner: str, source: str, id: str | None, events: Iterable[Event]
    ) -> None:
        self._opened, self._owner, self.source, self.id = opened, owner, source, id
        self.view = ConversationView(events)
        self.trouble = ""
        self.busy = threading.Lock()
        self.run: Running | None = None
        self.whole_rows: dict[int, Cells] = {}
        self.recall = LookupCorpus()
        self.toolbox: AgentContext | None = None
        self._storing = threading.Lock()

    def later(self, event: Event) -> None:
        """Something is said or done about a turn that is over, or about none: a conversation begins with its first question."""
        self.view.apply(event)
        if self.id is not None:
            self.store([event])

    def store(self, events: Sequence[Event]) -> None:
        """Append events; the first ones begin a conversation in the archive."""
        if not events:
            return
        archive = self._opened.archive
        with self._storing:
            self.trouble = ""
            try:
                if self.id is None:
                    self.id = archive.begin(self._owner, self.source)
                    self._opened.add(self._owner, self)
                archive.add(self._owner, self.id, events)
            except ArchiveFull as error:
                self.trouble = f"this conversation is not kept: {error}"
            except sqlite3.Error as error:  # such as a full disk
                self.trouble = f"a conversation cannot be stored ({error})"
                print(f"sqlagent: {self.trouble}", file=sys.stderr)

    def on_other_data(self, source: str) -> None:
        """The conversation goes on, about these data from now on."""
        self.source, self.whole_rows, self.recall, self.toolbox = source, {}, LookupCorpus(), None
        if self.id is not None:
            self._opened.archive.move(self._owner, self.id, source)

    def events(self) -> list[Event]:
        """All that is stored of it."""
        return self._opened.archive.events(self._owner, self.id) if self.id else []


class Conversations:
    """The conversations that are open. Who opens one twice, in two tabs or by coming back to a question that is still being
    answered, has the same one, so that nothing is ever written by another."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self._open: WeakValueDictionary[tuple[str, str], KeptConversation] = WeakValueDictionary()
        self._lock = threading.Lock()

    def begin(self, owner: str, source: str, events: Sequence[Event] = ()) -> KeptConversation:
        """A new one, with events that happened elsewhere; it is stored once something is in it."""
        kept = KeptConversation(self, owner, source, None, events)
        kept.store(events)
        return kept

    def find(self, owner: str, name: str) -> KeptConversation | None:
        """The owner's conversation of that id, if there is one."""
        with self._lock:
            entry, kept = self.archive.entry(owner, name), self._open.get((owner, name))
            if entry is None or kept is not None:
                return kept if entry else None
            kept = KeptConversation(self, owner, entry.source, name, self.archive.events(owner, name))
            if kept.view.turns and not kept.view.turns[-1].is_over:
                kept.view.apply(Failed("No answer was kept: there was no room, or the program ended."))
            self._open[owner, name] = kept
            return kept

    def add(self, owner: str, kept: KeptConversation) -> None:
        """One that has an id now."""
        if kept.id is not None:
            with self._lock:
                self._open[owner, kept.id] = kept

    def delete(self, owner: str, name: str) -> Deleted | None:
        """Delete one of the owner's conversations; what was deleted."""
        entry = self.archive.entry(owner, name)
        if entry is None:
            return None
        gone = Deleted(entry, self.archive.events(owner, name))
        self.archive.delete(owner, name)
        return gone


def write_shared(events: Sequence[Event], path: Path) -> None:
    """Write events to a new file."""
    path.write_text("".join(to_json(event) + "\n" for event in events), encoding="utf-8")


def read_shared(path: Path) -> list[Event]:
    """The events of a file. Raises EventError where it is too long, holds no conversation, or a line is no event."""
    try:
        if path.stat().st_size > LONGEST_SHARED_MB << 20:
            raise EventError(f"{path.name} is longer than the {LONGEST_SHARED_MB} MiB that a conversation may have")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise EventError(f"cannot read {path.name}: it is not a text file") from error
    events = [from_json(line) for line in lines if line.strip()]
    if not any(isinstance(event, Asked) for event in events):
        raise EventError(f"{path.name} holds no conversation")
    return events


def first_turns(events: Sequence[Event], turns: int) -> list[Event]:
    """The events of the first turns, with what was later said of them."""
    kept: list[Event] = []
    turn = -1
    for event in events:
        turn += isinstance(event, Asked)
        late = isinstance(event, Judged | Ran | Measured)
        if (event.turn if isinstance(event, Judged | Ran | Measured) else turn) < turns and (late or turn < turns):
            kept.append(event)
    return kept
