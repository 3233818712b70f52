"""Files in the cache that take time to make: each is there whole or not at all, and is believed only with its checksum.

The checksum stands in the file's name, KEY-CRC32.SUFFIX, so that one rename puts both in place. It is there for accidents (a
power cut, a failing disk), not for attackers: who can write here can write a checksum as well.
"""

import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_UNFINISHED = ".unfinished"
_ABANDONED_AFTER_S = 3600.0


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """A folder of such files, of which the `most` that were used last are kept. `suffix` begins with a dot."""

    folder: Path
    suffix: str
    most: int

    def find(self, key: str) -> Path | None:
        """The file of `key`, read through and found as it was written. A damaged one is removed, and counts as missing."""
        for path in self.folder.glob(f"{key}-*{self.suffix}"):
            with suppress(OSError):
                if path.name == self._name(key, crc32_of(path)):
                    with suppress(OSError):  # a cache that may only be read
                        os.utime(path)
                    return path
                path.unlink()
        return None

    def store(self, key: str, write: Callable[[Path], object]) -> Path:
        """Let `write` make the file, and put it in its place when the disk has it.

        Raises OSError, or what `write` raises, and then leaves nothing behind.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f"{key}.{os.getpid()}{_UNFINISHED}"
        try:
            write(unfinished)
            flush(unfinished)
            path = unfinished.replace(self.folder / self._name(key, crc32_of(unfinished)))
        finally:
            unfinished.unlink(missing_ok=True)
        flush(self.folder)
        self._prune()
        return path

    def _name(self, key: str, crc32: int) -> str:
        return f"{key}-{crc32:08x}{self.suffix}"

    def _prune(self) -> None:
        for old in sorted(self.folder.glob(f"*{self.suffix}"), key=_age_s)[self.most :]:
            old.unlink(missing_ok=True)
        for left in self.folder.glob(f"*{_UNFINISHED}"):
            if _age_s(left) > _ABANDONED_AFTER_S:  # its writer was killed
                left.unlink(missing_ok=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # another process removed it
        return 0.0


def crc32_of(path: Path) -> int:
    """The checksum of a file."""
    crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def flush(path: Path) -> None:
    """Have the disk hold what was written to a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
