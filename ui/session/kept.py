"""The conversation of one session as the archive has it. Where it cannot be stored it goes on, and is not kept."""

import sqlite3
import sys
from collections.abc import Sequence

from agent.conversation.archive import Archive, ArchiveFull
from agent.observe.events import Event


class KeptConversation:
    """One owner's place in the archive. `id` is None until something is stored; `trouble` says why the last events were
    not, or is empty."""

    def __init__(self, archive: Archive, owner: str) -> None:
        self._archive, self._owner = archive, owner
        self.id: str | None = None
        self.trouble = ""

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

    def events(self) -> list[Event]:
        """All that is stored of it."""
        return self._archive.events(self._owner, self.id) if self.id else []
