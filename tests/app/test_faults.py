"""Faults injected: each ends in one clear line, loses nothing that was said to be kept, and the next thing works.

Elsewhere: crashed, hanging and memory-hungry queries in `tests/tools/databases/isolated/test_isolated_database.py`, the log in
`tests/agent/observe/test_events.py`, damaged GGUF files, heads, adapters and tokenizers in `tests/decoding`.
"""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.archive import Archive
from agent.observe.events import Asked, Judged
from app.cli import app
from app.shared import exit_codes
from eval.accuracy.record import Record, RecordLog
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.ui.workspaces import scripted_workspace
from tools.databases import sqlalchemy_database
from tools.databases.open_database import open_database
from tools.result import OpenError

ROOT = Path(__file__).parents[2]


def _killed_after(code: str) -> None:
    """Run Python that says "kept" when it has stored something, and kill it at that very moment."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline() == b"kept\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_killed_server_keeps_conversation_and_feedback(tmp_path: Path) -> None:
    _killed_after(f"""
from pathlib import Path
from agent.archive import Archive
from agent.observe.events import Asked, Judged
archive = Archive(Path({str(tmp_path / "chats.sqlite")!r}))
name = archive.begin("ada", "example")
archive.add("ada", name, [Asked("How many?", "", "shop")])
archive.add("ada", name, [Judged(0, True)])
print("kept", flush=True)
archive.add("ada", name, [Judged(0, False)] * 100000)
""")
    with closing(Archive(tmp_path / "chats.sqlite")) as archive:
        (entry,) = archive.search("ada")
        events = archive.events("ada", entry.id)
    assert events[:2] == [Asked("How many?", "", "shop"), Judged(0, True)]
    assert len(events) in (2, 100_002), "a batch is stored whole or not at all"


def test_a_server_killed_amid_an_answer_keeps_the_question(tmp_path: Path) -> None:
    """And what came before; the conversation goes on where it was."""
    script = {"How many albums?": "SELECT COUNT(*) FROM albums", "How many artists?": "SELECT COUNT(*) FROM artists"}
    _killed_after(f"""
from pathlib import Path
from agent.observe.events import Started
from tests.ui.workspaces import scripted_workspace
workspace = scripted_workspace(Path({str(tmp_path)!r}), {script!r})
session = workspace.session("one", "ada")
list(session.ask("How many albums?"))
workspace._load(workspace.choice)._model.pause_s = 60  # the answer never comes
for event in session.ask("And artists?"):
    if isinstance(event, Started):
        print("kept", flush=True)
""")
    with closing(scripted_workspace(tmp_path, script)) as workspace:
        session = workspace.session("two", "ada")
        (entry,) = workspace.archive.search("ada")
        session.resume(entry.id)
        albums, artists = session.view.turns
        assert albums.answer is not None and albums.answer["rows"] == [[4]]
        assert (artists.question, artists.answer) == ("And artists?", None) and artists.failure is not None
        list(session.ask("And artists?"))
        assert session.view.turns[-1].answer is not None and session.view.turns[-1].answer["rows"] == [[3]]


def test_a_killed_evaluation_keeps_its_records(tmp_path: Path) -> None:
    _killed_after(f"""
from pathlib import Path
from eval.accuracy.record import Record, RecordLog
log, rest = RecordLog(Path({str(tmp_path)!r}), {{}}, Record), dict(zip(Record.__dataclass_fields__, [""] * 14))
for number in range(100000):
    log.append(Record(**rest | {{"id": str(number), "question": "x" * 5000}}))
    if number == 2:
        print("kept", flush=True)
""")
    with closing(RecordLog(tmp_path, {}, Record)) as log:
        kept = [record.id for record in log.records]
        assert kept == [str(number) for number in range(len(kept))] and len(kept) >= 3
        log.append(replace(log.records[0], id="new"))


@contextmanager
def _full_disk(room: int) -> Iterator[None]:
    """No file of this process may grow beyond `room` bytes, which is what a full disk does to one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("room", "says"), [(0, "where temporary files go"), (64 << 10, "File too large")])
def test_no_room_for_a_copy(tmp_path: Path, room: int, says: str) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("a,b\n" + "".join(f"{number},{number * 7919}\n" for number in range(50_000)))
    with _full_disk(room), pytest.raises(OpenError, match=says) as caught:
        open_database(path)
    assert "\n" not in str(caught.value)
    open_database(path).close()


def test_no_room_for_the_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = scripted_workspace(tmp_path, {"How many albums?": "SELECT COUNT(*) FROM albums"})
    with closing(workspace):
        session = workspace.session("one", "ada")
        workspace.archive._connection.execute("PRAGMA max_page_count = 1")
        for _ in range(3):
            list(session.ask("How many albums?"))
        assert session.view.turns[-1].answer is not None and session.view.turns[-1].answer["rows"] == [[4]]
    assert "cannot be stored" in capsys.readouterr().err


def test_a_truncated_model_is_one_line(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "tiny")
    os.truncate(model / "model.safetensors", (model / "model.safetensors").stat().st_size // 2)
    said = CliRunner().invoke(app, ["ask", "How many?", "--model", str(model)])
    assert said.exit_code == exit_codes.MODEL
    assert "model.safetensors is damaged" in said.stderr and said.stderr.count("\n") <= 3


def test_a_corrupt_adapter_is_one_line(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "tiny")
    adapter = tmp_path / "adapter"
    shutil.copytree(model, adapter)
    (adapter / "adapter.safetensors").write_bytes(b"\xff" * 100)
    said = CliRunner().invoke(app, ["ask", "How many?", "--model", str(model), "--adapter", str(adapter)])
    assert said.exit_code == exit_codes.MODEL and "Traceback" not in said.stderr
    assert str(adapter) in said.stderr


def test_a_vanished_database_is_one_line(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["sql", "SELECT 1", "--db", str(tmp_path / "gone.sqlite")])
    assert said.exit_code == exit_codes.DATABASE
    assert "no such file" in said.stderr and said.stderr.count("\n") == 1


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung connection: something listens, takes the call, and says nothing."""
    monkeypatch.setattr(sqlalchemy_database, "CONNECT_TIMEOUT_S", 2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        threading.Thread(target=_take_calls, args=(silent,), daemon=True).start()
        url = f"postgresql+psycopg://ada:secret@127.0.0.1:{silent.getsockname()[1]}/shop"
        with pytest.raises(OpenError, match="cannot connect") as caught:
            open_database(url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def _take_calls(server: socket.socket) -> None:
    taken = []
    while True:
        try:
            taken.append(server.accept())
        except OSError:
            return
