"""What a session uses of the shared workspace, and the files that people bring and take away.

What a person may change about how questions are answered. Changes hold from the next question on.

The files that people bring and take away: a folder for each owner, and how much it may hold.

What a server of many keeps for one of them is bounded twice: by what that owner's folder holds, and by what all hold together.

What a session uses of the workspace that everybody shares, and what guests may do there.
"""

import hashlib
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any, Protocol

from agent.archive import Archive
from agent.assemble import DEFAULT_DECODER, ModelChoice
from agent.context import AgentContext, AgentOptions
from agent.observe.audit import AuditLog
from agent.prompts.knowledge import Knowledge
from decoding.engine.method import UnknownMethod
from decoding.methods.registry import METHODS, load_method, method_options, name_and_value, option_value
from tools.databases.database import Database
from tools.databases.files.sheets import Choice, Choices
from tools.processes import spill_folder
from tools.result import Limits, OpenError
from ui.session.kept import Conversations, plain_choices


@dataclass(frozen=True, slots=True)
class Settings:
    """`options`: the decoder's own, as `name=value` pairs separated by spaces or commas. `measure`: race every step plainly.
    `clarify`: ask back where a question is unclear."""

    model: str = "embedded"
    decoder: str = DEFAULT_DECODER
    options: str = ""
    temperature: float = 0.0
    attempts: int = 3
    max_rows: int = 1000
    deadline_s: float = 30.0
    measure: bool = False
    constrain: bool = True
    clarify: bool = True
    seed: int = 0

    def check(self) -> None:
        """Raise ModelError or ValueError (UnknownMethod is one) with a line that says what is wrong."""
        if None in astuple(self):
            raise ValueError("a number is missing")
        load_method(self.decoder, **self.decoder_options())

    def decoder_options(self) -> dict[str, Any]:
        """Raises ValueError, or UnknownMethod for an option that the decoder lacks."""
        known = method_options(self.decoder)
        given: dict[str, Any] = {}
        for pair in self.options.replace(",", " ").split():
            name, text = name_and_value(pair)
            if name not in known:
                raise UnknownMethod(f"{self.decoder} has no option {name}; it has: {', '.join(known) or 'none'}")
            given[name] = option_value(text)
        return given

    def choice(self, base: ModelChoice) -> ModelChoice:
        """`base` with what is set here."""
        same = self.model == base.model
        return replace(
            base,
            model=self.model,
            adapter=base.adapter if same else "auto",
            profile=base.profile if same else None,
            escalate=base.escalate if same else "",
            decoder=self.decoder,
            decoder_options=self.decoder_options(),
            temperature=self.temperature,
        )

    def agent_options(self) -> AgentOptions:
        return AgentOptions(
            max_attempts=self.attempts,
            race=self.measure,
            constrain=self.constrain,
            clarify=self.clarify,
            seed=self.seed,
            rerank=True,
        )

    def limits(self) -> Limits:
        return Limits(deadline_s=self.deadline_s, max_rows=self.max_rows)


def options_hint(decoder: str) -> str:
    """The decoder's options with their defaults, as one would write them."""
    known = method_options(decoder) if decoder in METHODS else {}
    return " ".join(f"{name}={value}" for name, value in known.items()) or "no options"


OWNERS_ALLOWANCES = 20
"""All owners together may keep so many times what one may."""
EXPORTS = "exports"


class OwnFiles:
    """One folder, with one inside for each owner. `most_mb`: MiB that an owner's files may take, exports apart."""

    def __init__(self, most_mb: int) -> None:
        self.root = _gradio_folder() / token_hex(8)
        self._most = most_mb << 20
        self._coming: Counter[str] = Counter()

    def new_folder(self, owner: str) -> Path:
        """A fresh folder of this owner's, with a name that nobody guesses."""
        folder = self._of(owner) / token_hex(16)
        (folder / EXPORTS).mkdir(parents=True, mode=0o700)
        return folder

    def owns(self, owner: str, path: Path) -> bool:
        """Whether the path is a file of this owner's."""
        found = path.resolve()
        return found.is_relative_to(self._of(owner).resolve()) and found.is_file()

    def offers(self, owner: str, path: Path) -> bool:
        """Whether the path is a file that was made for this owner to take away."""
        return self.owns(owner, path) and path.resolve().parent.name == EXPORTS

    def discard(self, owner: str, path: Path) -> None:
        """Remove the folder that an owner's file came with."""
        inside = path.resolve().relative_to(self._of(owner).resolve())
        shutil.rmtree(self._of(owner) / inside.parts[0], ignore_errors=True)

    @contextmanager
    def room(self, owner: str, length: int) -> Iterator[None]:
        """Keep room for so many bytes that are on their way. Raises OpenError where there is none."""
        if self.used(owner) + self._coming[owner] + length > self._most:
            raise OpenError(f"your files would be more than the {self._most >> 20} MiB allowed here")
        everything = sum(map(_bytes, _files(self.root))) + self._coming.total()
        if everything + length > OWNERS_ALLOWANCES * self._most:
            raise OpenError("this server keeps as many files as it may; try again later")
        self._coming[owner] += length
        try:
            yield
        finally:
            self._coming[owner] -= length

    def used(self, owner: str) -> int:
        """Bytes of this owner's files, exports apart."""
        return sum(_bytes(file) for file in _files(self._of(owner)) if file.parent.name != EXPORTS)

    def exported(self, owner: str) -> int:
        """Bytes of this owner's exports."""
        return sum(_bytes(file) for file in _files(self._of(owner)) if file.parent.name == EXPORTS)

    def remove(self, owner: str) -> None:
        """All that this owner has here."""
        shutil.rmtree(self._of(owner), ignore_errors=True)

    def close(self) -> None:
        """Remove everybody's files."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _of(self, owner: str) -> Path:
        return self.root / hashlib.sha256(owner.encode()).hexdigest()[:32]


def fresh_export(folder: Path, name: str) -> Path:
    """Where a session's next export goes, in the place of the last ones."""
    remove_files((folder / EXPORTS).iterdir())
    return folder / EXPORTS / name


def remove_files(files: Iterable[Path]) -> None:
    """Remove files, of which some may be gone already."""
    for file in files:
        file.unlink(missing_ok=True)


def _gradio_folder() -> Path:
    """Where Gradio looks for files that come and go: private to this user, and gone with the program."""
    return Path(os.environ.setdefault("GRADIO_TEMP_DIR", str(spill_folder() / "uploads"))).resolve()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # removed meanwhile
        return 0


KEPT_S = 7 * 24 * 3600.0
_TOLD = "kept.json"


class KeptFiles:
    """Files that people brought, kept for a week, so that a conversation opens with its data after a reload, in a second tab
    and after a restart. A folder for each owner, with one inside for each source; those that were used longest ago make room.
    `most_mb`: MiB that an owner's may take."""

    def __init__(self, folder: Path, most_mb: int) -> None:
        self._root, self._most = folder, most_mb << 20
        self._changing = threading.Lock()

    def keep(self, owner: str, source: str, files: Sequence[Path], choices: Choices) -> None:
        """Copy the files, unless they are here already. Raises OSError."""
        with self._changing:
            place = self._place(owner, source)
            if not (place / _TOLD).is_file():
                self._copy(place, source, files, choices)
            (place / _TOLD).touch()
            self._make_room(owner)

    def find(self, owner: str, source: str) -> tuple[list[Path], Choices] | None:
        """The files of a source and how they are read, where they are kept."""
        with self._changing, suppress(OSError, ValueError, KeyError, TypeError):
            place = self._place(owner, source)
            told = json.loads((place / _TOLD).read_text(encoding="utf-8"))
            if told["source"] != source:
                return None
            (place / _TOLD).touch()
            choices = {(file, sheet): Choice(header, total) for file, sheet, header, total in told["choices"]}
            return [place / "files" / name for name in told["files"]], choices
        return None

    def recent(self, owner: str) -> list[tuple[str, float]]:
        """The sources that are kept, the newest first, each with the time of its last use."""
        found = []
        for told in self._of(owner).glob(f"*/{_TOLD}"):
            with suppress(OSError, ValueError, KeyError):
                found.append((str(json.loads(told.read_text(encoding="utf-8"))["source"]), told.stat().st_mtime))
        return sorted(found, key=lambda each: -each[1])

    def forget(self, owner: str) -> None:
        """Remove all that is kept for an owner."""
        with self._changing:
            shutil.rmtree(self._of(owner), ignore_errors=True)

    def _copy(self, place: Path, source: str, files: Sequence[Path], choices: Choices) -> None:
        coming = place.with_name(f".{token_hex(8)}")
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        (coming / "files").mkdir(parents=True)
        try:
            for file in files:
                shutil.copyfile(file, coming / "files" / file.name)
            told = {"source": source, "files": [file.name for file in files], "choices": plain_choices(choices)}
            (coming / _TOLD).write_text(json.dumps(told), encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            coming.rename(place)
        except OSError:
            shutil.rmtree(coming, ignore_errors=True)
            raise

    def _make_room(self, owner: str) -> None:
        """Remove what is a week old, and what was used longest ago where this owner's, or everybody's, is too much."""
        for told in self._oldest(self._root.glob(f"*/*/{_TOLD}")):
            if told.stat().st_mtime < time() - KEPT_S:
                shutil.rmtree(told.parent, ignore_errors=True)
        self._within(f"{self._of(owner).name}/*/{_TOLD}", self._most)
        self._within(f"*/*/{_TOLD}", OWNERS_ALLOWANCES * self._most)

    def _within(self, which: str, most: int) -> None:
        places = [told.parent for told in self._oldest(self._root.glob(which))]
        sizes = [sum(file.stat().st_size for file in place.glob("files/*")) for place in places]
        total = sum(sizes)
        for place, size in zip(places, sizes, strict=True):
            if total <= most:
                return
            shutil.rmtree(place, ignore_errors=True)
            total -= size

    def _oldest(self, found: Iterable[Path]) -> list[Path]:
        return sorted(found, key=lambda told: told.stat().st_mtime)

    def _of(self, owner: str) -> Path:
        return self._root / hashlib.sha256(owner.encode()).hexdigest()[:32]

    def _place(self, owner: str, source: str) -> Path:
        return self._of(owner) / hashlib.sha256(source.encode()).hexdigest()[:32]


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
    kept_files: KeptFiles
    rules: GuestRules
    log: AuditLog | None
    knowledge: Knowledge

    def default_settings(self) -> Settings:
        """What a session begins with."""
        ...

    def toolbox(self, settings: Settings, database: Database) -> AgentContext:
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
