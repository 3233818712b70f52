"""Guards stored conversations: they survive the program, belong to one owner, and are found again."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent import archive as archives
from agent.archive import Archive, ArchiveFull
from agent.observe.events import Asked, Failed, Judged

EVENTS = [Asked("How many albums?"), Failed("Stopped.", True), Judged(0, True)]


def test_a_conversation_survives_the_program(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    name = archive.begin("ada", "example")
    archive.add("ada", name, EVENTS[:1])
    archive.add("ada", name, EVENTS[1:])
    archive.close()
    again = Archive(tmp_path / "chats.sqlite")
    assert again.events("ada", name) == EVENTS
    entry = again.entry("ada", name)
    assert entry is not None and (entry.title, entry.source) == ("How many albums?", "example")


def test_nobody_reaches_anothers_conversation(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    name = archive.begin("ada", "example")
    archive.add("ada", name, EVENTS)
    archive.add("bo", name, [Asked("mine now?")])
    assert archive.search("bo") == []
    assert archive.events("bo", name) == []
    assert not archive.delete("bo", name)
    assert archive.events("ada", name) == EVENTS


def test_search_looks_at_every_question_and_puts_the_newest_first(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    for questions in (["Albums by year", "and by Genre?"], ["Concerts"], ["The genre of an artist"]):
        name = archive.begin("ada", "example")
        archive.add("ada", name, [Asked(question) for question in questions])
    assert [entry.title for entry in archive.search("ada")] == ["The genre of an artist", "Concerts", "Albums by year"]
    assert [entry.title for entry in archive.search("ada", "GENRE")] == ["The genre of an artist", "Albums by year"]
    assert archive.search("ada", "%") == []


def test_names_and_pins_stay_after_a_restart_and_are_their_owners(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    first, second = (archive.begin("ada", "example") for _ in range(2))
    for name in (first, second):
        archive.add("ada", name, EVENTS)
    archive.rename("ada", first, f"  <b>Albums</b>\n of {'x' * 100}")
    archive.rename("ada", second, " \n ")
    archive.rename("bo", second, "mine now")
    archive.pin("ada", first, True)
    archive.pin("bo", second, True)
    archive.add("ada", first, EVENTS)
    archive.add("ada", second, EVENTS)
    archive.close()
    again = Archive(tmp_path / "chats.sqlite")
    named = f"<b>Albums</b> of {'x' * 100}"[:80]
    assert [(entry.title, entry.pinned) for entry in again.search("ada")] == [(named, 1), ("How many albums?", 0)]
    newest = again.newest("ada")
    assert newest is not None and newest.id == second
    assert [entry.id for entry in again.search("ada", "<B>")] == [first]
    again.pin("ada", first, False)
    assert [entry.id for entry in again.search("ada")] == [second, first]


def test_a_file_of_an_older_release_has_no_pins(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "chats.sqlite", isolation_level=None)) as old:
        old.executescript(
            """CREATE TABLE conversations (id TEXT PRIMARY KEY, owner TEXT NOT NULL, title TEXT NOT NULL,
                source TEXT NOT NULL, changed_s REAL NOT NULL);
            INSERT INTO conversations VALUES ('a', 'ada', 'How many?', 'example', 1.0)"""
        )
    for _ in range(2):
        archive = Archive(tmp_path / "chats.sqlite")
        assert [(entry.id, entry.pinned) for entry in archive.search("ada")] == [("a", 0)]
        archive.begin("ada", "example", "another")
        archive.delete("ada", archive.search("ada")[0].id)
        archive.close()


def test_what_is_deleted_is_gone(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    name = archive.begin("ada", "example")
    archive.add("ada", name, EVENTS)
    assert archive.delete("ada", name)
    assert archive.events("ada", name) == []
    assert archive.search("ada") == []


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    Archive(tmp_path / "chats.sqlite")
    assert (tmp_path / "chats.sqlite").stat().st_mode & 0o077 == 0


LONG = Asked("x" * 300_000)


def test_an_owner_has_a_quota_which_deleting_frees(tmp_path: Path) -> None:
    """Guards the disk: conversations were kept without end. What was stored before a restart counts, too."""
    archive = Archive(tmp_path / "chats.sqlite", most_mb=1)
    first, second = archive.begin("ada", "example"), archive.begin("ada", "example")
    archive.add("ada", first, [LONG] * 2)
    archive.close()
    archive = Archive(tmp_path / "chats.sqlite", most_mb=1)
    archive.add("ada", second, [LONG])
    with pytest.raises(ArchiveFull, match="the 1 MiB that are kept for you; delete some"):
        archive.add("ada", second, [LONG])
    assert len(archive.events("ada", second)) == 1
    archive.add("bo", archive.begin("bo", "example"), [LONG])
    archive.delete("ada", first)
    archive.add("ada", second, [LONG] * 2)
    with pytest.raises(ArchiveFull):
        archive.add("ada", second, [LONG])


def test_all_owners_together_have_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new cookie is a new owner."""
    monkeypatch.setattr(archives, "OWNERS_ALLOWANCES", 2)
    archive = Archive(tmp_path / "chats.sqlite", most_mb=1)

    def add(number: int) -> None:
        archive.add(f"owner {number}", archive.begin(f"owner {number}", "example"), [LONG])

    for number in range(5):  # of 300 kB each into 2 MiB
        add(number)
    with pytest.raises(ArchiveFull, match="as many conversations as it may"):
        list(map(add, range(5, 9)))


def test_without_a_quota_everything_is_kept(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "chats.sqlite")
    name = archive.begin("ada", "example")
    archive.add("ada", name, [LONG] * 8)
    assert len(archive.events("ada", name)) == 8
