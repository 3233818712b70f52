"""Guards against incomplete files that pass as complete, and against restarting 98 MB after every network error."""

import hashlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from decoding.checkpoints.embedded import ChecksumMismatch, download
from decoding.errors import ModelUnavailable
from tests.decoding.checkpoints.file_server import FileServer, serving

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PATH = "/files/model.bin"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as server:
        server.files[PATH] = CONTENT
        yield server


def fetch(server: FileServer, folder: Path) -> bytes:
    target = folder / "model.bin"
    download(server.url + PATH, target, SHA256)
    assert not (folder / "model.bin.part").exists()
    return target.read_bytes()


def test_a_file_arrives_with_its_progress(server: FileServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    download(server.url + PATH, tmp_path / "x", SHA256, progress=lambda *args: seen.append(args), what="fetching")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert seen[-1] == ("fetching", len(CONTENT), len(CONTENT))


def test_goes_on_after_a_kill(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "model.bin.part").write_bytes(CONTENT[:300_000])
    assert fetch(server, tmp_path) == CONTENT
    assert server.fetched(PATH) == ["bytes=300000-"]


def test_goes_on_after_a_broken_connection(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]
    assert fetch(server, tmp_path) == CONTENT
    assert server.fetched(PATH) == [None, "bytes=100000-", "bytes=150000-"]


def test_starts_over_where_ranges_are_unknown(server: FileServer, tmp_path: Path) -> None:
    """A server that answers 200 sends the whole file: appending it to the part would never give the right one."""
    server.ranges = False
    (tmp_path / "model.bin.part").write_bytes(CONTENT[:300_000])
    assert fetch(server, tmp_path) == CONTENT
    assert len(server.fetched(PATH)) == 1


@pytest.mark.parametrize("length", [1000, len(CONTENT), len(CONTENT) + 5])
def test_a_part_of_another_file_is_thrown_away(server: FileServer, tmp_path: Path, length: int) -> None:
    (tmp_path / "model.bin.part").write_bytes(b"x" * length)
    assert fetch(server, tmp_path) == CONTENT


def test_a_finished_part_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    """Killed between the last byte and the check."""
    (tmp_path / "model.bin.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path) == CONTENT
    assert server.fetched(PATH) == [f"bytes={len(CONTENT)}-"]


def test_a_wrong_file_is_refused_and_removed(server: FileServer, tmp_path: Path) -> None:
    server.files[PATH] = CONTENT[:-1] + b"!"
    with pytest.raises(ChecksumMismatch, match=r"model\.bin\.part has SHA-256"):
        fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_server_and_the_network_are_told(server: FileServer, tmp_path: Path) -> None:
    server.status = 403
    with pytest.raises(ModelUnavailable, match="403"):
        fetch(server, tmp_path)
    with pytest.raises(ModelUnavailable, match="connection failed"):
        download("http://127.0.0.1:1/x", tmp_path / "x", SHA256)


def test_file_urls_work_too(tmp_path: Path) -> None:
    """Indexes on disk hand out file:// links; they ignore ranges."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "model.bin").write_bytes(CONTENT)
    (tmp_path / "model.bin.part").write_bytes(CONTENT[:1000])
    download((tmp_path / "index" / "model.bin").as_uri(), tmp_path / "model.bin", SHA256)
    assert (tmp_path / "model.bin").read_bytes() == CONTENT


def test_a_full_disk_is_told_as_one_and_keeps_nothing(server: FileServer, tmp_path: Path) -> None:
    """It was told as a failure of the connection, after four attempts, and left what had been written."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))  # no file of this process may grow beyond that
    try:
        with pytest.raises(OSError, match="File too large"):
            fetch(server, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert list(tmp_path.iterdir()) == []
    assert len(server.fetched(PATH)) == 1
    assert fetch(server, tmp_path) == CONTENT
