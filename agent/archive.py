"""Keeps conversations on disk, and turns liked answers into examples.

Conversations are stored with all their events in one SQLite file, so they survive a restart and can be shared. Answers with a
thumbs-up become examples in a knowledge folder.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any
from uuid import uuid4

from agent.observe.events import Answered, Asked, Event, Judged, read_events, to_json
from agent.prompts.knowledge import EXAMPLES, examples

_TABLES = """
CREATE TABLE IF NOT EXISTS conversations (id TEXT PRIMARY KEY, owner TEXT NOT NULL, title TEXT NOT NULL,
    source TEXT NOT NULL, changed_s REAL NOT NULL, pinned INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS events (conversation TEXT NOT NULL, position INTEGER NOT NULL, line TEXT NOT NULL,
    PRIMARY KEY (conversation, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_owner ON conversations (owner, changed_s);
"""
_SIZE = "SELECT COALESCE(SUM(LENGTH(CAST(line AS BLOB))), 0) FROM events"
_PINNED = "ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0"  # in a file of an older release
_LISTED = "SELECT id, title, source, changed_s, pinned FROM conversations"
_TITLE_LENGTH = 80
_ROOM_TO_BEGIN = 1024  # bytes
OWNERS_ALLOWANCES = 20
"""All owners together may keep so many times what one may."""


class ArchiveFull(RuntimeError):
    """There is no room for more events; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation as a list shows it. `title`: its first question, or the name that it was given; `source`: what its
    database was opened from; `changed_s`: seconds since 1970; `pinned`: 1 if it comes before the others."""

    id: str
    title: str
    source: str
    changed_s: float
    pinned: int = 0


class Archive:
    """Stored conversations. Calls name the owner, so that nobody sees, changes or deletes another's. Thread-safe.

    `most_mb`: MiB that the events of one owner may take; without it there is no limit.
    """

    def __init__(self, path: Path, most_mb: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._most = None if most_mb is None else most_mb << 20
        self._used: dict[str, int] = {}  # bytes, of the owners that have added something
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        path.chmod(0o600)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(_TABLES)
        if "pinned" not in {row[1] for row in self._connection.execute("PRAGMA table_info(conversations)")}:
            self._connection.execute(_PINNED)

    def begin(self, owner: str, source: str, title: str = "") -> str:
        """Start a new conversation; returns its id. Raises ArchiveFull."""
        name = uuid4().hex
        with self._lock:
            self._make_room(owner, _ROOM_TO_BEGIN)
        self._do("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, 0)", name, owner, title, source, time())
        return name

    def add(self, owner: str, conversation: str, events: Iterable[Event]) -> None:
        """Append events. The first question becomes the title. Does nothing to another owner's conversation. Raises
        ArchiveFull, and then nothing was added."""
        events = list(events)
        if not events or self.entry(owner, conversation) is None:
            return
        title = next((event.question[:_TITLE_LENGTH] for event in events if isinstance(event, Asked)), "")
        # SQLite cannot store lone surrogates
        lines = [to_json(event).encode(errors="replace") for event in events]
        with self._lock, self._connection as connection:
            self._make_room(owner, sum(map(len, lines)))
            connection.execute("BEGIN")
            count = "SELECT COALESCE(MAX(position) + 1, 0) FROM events WHERE conversation = ?"
            (start,) = connection.execute(count, (conversation,)).fetchone()
            rows = [(conversation, start + i, line.decode()) for i, line in enumerate(lines)]
            connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
            change = "UPDATE conversations SET changed_s = ?, title = IIF(title = '', ?, title) WHERE id = ?"
            connection.execute(change, (time(), title, conversation))

    def events(self, owner: str, conversation: str) -> list[Event]:
        """All readable events of the conversation; none if this owner has no such conversation."""
        if self.entry(owner, conversation) is None:
            return []
        lines = "SELECT line FROM events WHERE conversation = ? ORDER BY position"
        return list(read_events(line for (line,) in self._do(lines, conversation)))

    def every(self, source: str) -> Iterator[list[Event]]:
        """The events of each conversation on `source`, of any owner: for the file's administrator, not for askers."""
        for owner, conversation in self._do("SELECT owner, id FROM conversations WHERE source = ?", source):
            yield self.events(owner, conversation)

    def entry(self, owner: str, conversation: str) -> Entry | None:
        """The list entry of one conversation; None if this owner has no such conversation."""
        wanted = f"{_LISTED} WHERE id = ? AND owner = ?"
        return next((Entry(*row) for row in self._do(wanted, conversation, owner)), None)

    def search(self, owner: str, text: str = "", most: int = 100) -> list[Entry]:
        """The owner's conversations that have `text` in their name or a question (any case): pinned ones first, each newest
        first."""
        query = f"""{_LISTED} c WHERE owner = ? AND title <> '' AND (? = ''
            OR INSTR(LOWER(title), LOWER(?)) > 0 OR EXISTS (SELECT 1 FROM events e WHERE e.conversation = c.id
            AND e.line LIKE '{{"event": "asked"%' AND INSTR(LOWER(json_extract(line, '$.question')), LOWER(?)) > 0))
            ORDER BY pinned DESC, changed_s DESC LIMIT ?"""
        return [Entry(*row) for row in self._do(query, owner, text, text, text, most)]

    def newest(self, owner: str) -> Entry | None:
        """The owner's conversation in which something was asked last; None if there is none."""
        newest = f"{_LISTED} WHERE owner = ? AND title <> '' ORDER BY changed_s DESC LIMIT 1"
        return next((Entry(*row) for row in self._do(newest, owner)), None)

    def rename(self, owner: str, conversation: str, name: str) -> None:
        """Give a name in place of the first question: a line of plain text, which is cut after 80 characters. Does nothing
        without a name, or to another owner's conversation."""
        title = " ".join(name.split())[:_TITLE_LENGTH].encode(errors="replace").decode()
        if title:
            self._do("UPDATE conversations SET title = ? WHERE id = ? AND owner = ?", title, conversation, owner)

    def pin(self, owner: str, conversation: str, pinned: bool) -> None:
        """Put a conversation before the others, or back among them. Does nothing to another owner's."""
        self._do("UPDATE conversations SET pinned = ? WHERE id = ? AND owner = ?", int(pinned), conversation, owner)

    def move(self, owner: str, conversation: str, source: str) -> None:
        """The conversation is about another source from now on. Does nothing to another owner's."""
        self._do("UPDATE conversations SET source = ? WHERE id = ? AND owner = ?", source, conversation, owner)

    def delete(self, owner: str, conversation: str) -> bool:
        """Delete the conversation; returns whether there was one to delete."""
        if self.entry(owner, conversation) is None:
            return False
        with self._lock, self._connection as connection:
            connection.execute("BEGIN")
            if owner in self._used:
                size = connection.execute(f"{_SIZE} WHERE conversation = ?", (conversation,)).fetchone()[0]
                self._used[owner] -= size
            connection.execute("DELETE FROM events WHERE conversation = ?", (conversation,))
            connection.execute("DELETE FROM conversations WHERE id = ?", (conversation,))
        return True

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _make_room(self, owner: str, size: int) -> None:
        """Count `size` bytes as this owner's. Raises ArchiveFull. The lock is held."""
        if self._most is None:
            return
        if owner not in self._used:
            of_owner = f"{_SIZE} WHERE conversation IN (SELECT id FROM conversations WHERE owner = ?)"
            (self._used[owner],) = self._connection.execute(of_owner, (owner,)).fetchone()
        if self._used[owner] + size > self._most:
            raise ArchiveFull(
                f"your conversations take the {self._most >> 20} MiB that are kept for you; delete some to keep new ones"
            )
        pages, free, page_bytes = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * page_bytes + size > OWNERS_ALLOWANCES * self._most:
            raise ArchiveFull("this server keeps as many conversations as it may; --chats-limit sets how many")
        self._used[owner] += size

    def _do(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()


def liked(events: Iterable[Event]) -> Iterator[tuple[str, str]]:
    """The question and SQL of a conversation's first turn, if the last judgement of its answer was a thumbs-up. Later turns
    depend on what was said before, so they are no examples by themselves.
    """
    question = sql = ""
    turn, approved = -1, False
    for event in events:
        turn += isinstance(event, Asked)
        if isinstance(event, Asked) and turn == 0:
            question = event.question
        elif isinstance(event, Answered) and turn == 0 and event.answer["error"] is None:
            sql = event.answer["sql"] or ""
        elif isinstance(event, Judged) and event.turn == 0:
            approved = event.liked is True
    if approved and sql:
        yield question, sql


def learn(folder: Path, conversations: Iterable[Sequence[Event]]) -> list[str]:
    """Append the liked pairs whose questions the folder's examples lack; returns these questions.
    Raises KnowledgeError.
    """
    return add_examples(folder, (pair for events in conversations for pair in liked(events)))


def add_examples(folder: Path, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Append pairs of question and SQL whose questions the folder's examples lack; returns these questions.
    Raises KnowledgeError, OSError.
    """
    known = {question.casefold() for question, _ in examples(folder)}
    learnt: list[str] = []
    with (folder / EXAMPLES).open("a", encoding="utf-8") as file:
        for question, sql in pairs:
            heading = " ".join(question.split())
            if heading.casefold() not in known and "```" not in sql:
                file.write(f"\n## {heading}\n\n```sql\n{sql}\n```\n")
                known.add(heading.casefold())
                learnt.append(heading)
    return learnt
