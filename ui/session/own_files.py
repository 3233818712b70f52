"""The files that people bring and take away: a folder for each owner, and how much it may hold.

What a server of many keeps for one of them is bounded twice: by what that owner's folder holds, and by what all hold together.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from tools.processes.temporary_folders import spill_folder
from tools.result import OpenError

OWNERS_ALLOWANCES = 20
"""All owners together may keep so many times what one may."""
EXPORTS = "exports"


class OwnFiles:
    """One folder, with one inside for each owner. `most_mb`: MiB that an owner's files may take, exports apart."""

    def __init__(self, most_mb: int) -> None:
        self._root = _gradio_folder() / token_hex(8)
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
        everything = sum(map(_bytes, _files(self._root))) + self._coming.total()
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
        shutil.rmtree(self._root, ignore_errors=True)

    def _of(self, owner: str) -> Path:
        return self._root / hashlib.sha256(owner.encode()).hexdigest()[:32]


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
