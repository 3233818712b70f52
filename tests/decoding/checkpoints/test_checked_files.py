"""Files that are there whole or not at all, and that are made anew when a bit of them has changed."""

import os
from pathlib import Path

import pytest

from decoding.checkpoints.cache_folder import CheckedFiles


@pytest.fixture
def files(tmp_path: Path) -> CheckedFiles:
    return CheckedFiles(tmp_path / "cache", ".bin", 2)


def test_a_file_is_found_as_it_was_written(files: CheckedFiles) -> None:
    assert files.find("a") is None
    stored = files.store("a", lambda path: path.write_bytes(b"weights"))
    assert files.find("a") == stored and stored.read_bytes() == b"weights"
    assert files.find("b") is None


@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_changed_bit_is_noticed_and_the_file_removed(files: CheckedFiles, place: int) -> None:
    stored = files.store("a", lambda path: path.write_bytes(b"weights"))
    data = bytearray(stored.read_bytes())
    data[place] ^= 1
    stored.write_bytes(data)
    assert files.find("a") is None
    assert not stored.exists()


def test_a_writer_that_fails_leaves_nothing(files: CheckedFiles) -> None:
    def half(path: Path) -> None:
        path.write_bytes(b"wei")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        files.store("a", half)
    assert list(files.folder.iterdir()) == []


def test_the_file_is_on_the_disk_before_it_has_its_name(files: CheckedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a name without its bytes would be a damaged file."""
    flushed: list[list[str]] = []
    flush = os.fsync

    def note(descriptor: int) -> None:
        flushed.append([path.suffix for path in files.folder.iterdir()])
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    files.store("a", lambda path: path.write_bytes(b"weights"))
    assert flushed == [[".unfinished"], [".bin"]], "the bytes, then the folder with the new name"


def test_the_last_used_stay_and_what_killed_writers_left_goes(files: CheckedFiles) -> None:
    for age_s, key in enumerate("abc"):
        path = files.store(key, lambda path: path.write_bytes(b"weights"))
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100 + age_s))
    left, new = files.folder / "x.1.unfinished", files.folder / "y.2.unfinished"
    for unfinished, mtime_s in ((left, 0.0), (new, path.stat().st_mtime)):
        unfinished.write_bytes(b"half")
        os.utime(unfinished, (mtime_s, mtime_s))
    files.store("d", lambda path: path.write_bytes(b"weights"))
    assert [files.find(key) is not None for key in "abcd"] == [False, False, True, True]
    assert new.exists() and not left.exists()
