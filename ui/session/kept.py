"""The conversation of one session as the archive has it, and as a file that people hand to each other: events, one a line.
Where it cannot be stored it goes on, and is not kept."""

import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.conversation.archive import Archive, ArchiveFull
from agent.observe.event_json import EventError, from_json, to_json
from agent.observe.events import Asked, Event, Judged, Measured, Ran
from tools.result import OpenError
from ui.session.conversation_view import TurnView

LONGEST_SHARED_MB = 32
SHARED = "shared file: "  # in front of the file's name, as a source


class Busy(RuntimeError):
    """One question at a time."""


class OtherData(OpenError):
    """The conversation is about data that are not open."""

    def __init__(self, wanted: str) -> None:
        super().__init__(f"This conversation is about {wanted}: open that under Data, or begin a new conversation.")


def check_open(wanted: str) -> None:
    """Raises OtherData where data are wanted that are not open."""
    if wanted:
        raise OtherData(wanted)


def missing(source: str, turns: Sequence[TurnView], open_source: str, open_name: str) -> str:
    """The source of a conversation where another one is open, otherwise an empty text. A shared file knows only the name of
    its database."""
    if not source.startswith(SHARED):
        return "" if source == open_source else source
    name = turns[0].database if turns else ""
    return "" if name in ("", open_name) else name


@dataclass(frozen=True, slots=True)
class Deleted:
    """A conversation that is no longer in the archive."""

    title: str
    source: str
    events: list[Event]


class KeptConversation:
    """One owner's place in the archive. `id` is None until something is stored; `trouble` says why the last events were
    not, or is empty."""

    def __init__(self, archive: Archive, owner: str) -> None:
        self._archive, self._owner = archive, owner
        self.id: str | None = None
        self.trouble = ""
        self.deleted: Deleted | None = None

    def delete(self, conversation: str) -> None:
        """Delete one of this owner's conversations; it can be restored until the next is deleted."""
        entry = self._archive.entry(self._owner, conversation)
        if entry is not None:
            self.deleted = Deleted(entry.title, entry.source, self._archive.events(self._owner, conversation))
            self._archive.delete(self._owner, conversation)

    def restore(self) -> str | None:
        """The new id of the conversation that was deleted last; None where there is none, or `trouble` says why not."""
        gone, shown = self.deleted, self.id
        if gone is None:
            return None
        self.id = None
        self.store(gone.events, gone.source)
        restored, self.id = self.id, shown
        if self.trouble:
            return None
        self.deleted = None
        return restored

    def store(self, events: Sequence[Event], source: str) -> None:
        """Append events; the first ones begin a conversation about `source`."""
        if not events:
            return
        self.trouble = ""
        try:
            if self.id is None:
                self.id = self._archive.begin(self._owner, source)
            self._archive.add(self._owner, self.id, events)
        except ArchiveFull as error:
            self.trouble = f"this conversation is not kept: {error}"
        except sqlite3.Error as error:  # such as a full disk
            self.trouble = f"a conversation cannot be stored ({error})"
            print(f"sqlagent: {self.trouble}", file=sys.stderr)

    def move(self, source: str) -> None:
        """The conversation is about other data from now on."""
        if self.id is not None:
            self._archive.move(self._owner, self.id, source)

    def events(self) -> list[Event]:
        """All that is stored of it."""
        return self._archive.events(self._owner, self.id) if self.id else []


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
