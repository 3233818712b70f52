"""Keys and values of prompts' beginnings on disk: a later process need not compute those of a schema that it asks about.

Files hold the keys and values of a page of positions each. A file's name is a digest of the model and of all tokens up to the
page's end, so a page is taken for the same text only. The files that were used last stay. Only this user can read them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.fetch.cache_folder import written_whole

MOST_BYTES = 256 << 20
WORTH_PAGES = 4  # fewer are sooner computed than kept
_SUFFIX = ".page"

Page = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class KeptPrompts:
    """Pages below `folder`. model: what changes with any of the model's numbers. positions, shape, dtype: of a page."""

    folder: Path
    model: str
    positions: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    most_bytes: int = MOST_BYTES

    def read(self, tokens: Sequence[int]) -> list[Page]:
        """The first pages of these tokens that are kept, mapped; none after the first one that is missing."""
        found: list[Page] = []
        for file in self._files(tokens):
            page = self._mapped(file)
            if page is None:
                break
            found.append(page)
        return found

    def write(self, tokens: Sequence[int], pages: Sequence[Page]) -> None:
        """Keep the full pages of these tokens if enough of them are new. Where that fails they are computed next time."""
        missing = [(file, page) for file, page in zip(self._files(tokens), pages, strict=False) if not file.exists()]
        if len(missing) >= WORTH_PAGES:
            with suppress(OSError):
                for file, page in missing:
                    written_whole(file, page.tobytes())
                self._prune()

    def _files(self, tokens: Sequence[int]) -> Iterator[Path]:
        digest = hashlib.sha256(f"{self.model} {self.shape}".encode())
        for end in range(self.positions, len(tokens) + 1, self.positions):
            digest.update(np.array(tokens[end - self.positions : end], np.int64).tobytes())
            yield self.folder / f"{digest.hexdigest()[:32]}{_SUFFIX}"

    def _mapped(self, file: Path) -> Page | None:
        try:
            page = np.memmap(file, self.dtype, "c")
            file.touch()  # used last
            return page.reshape(self.shape).view(np.ndarray)
        except (OSError, ValueError):  # not there, or of another size
            return None

    def _prune(self) -> None:
        total = 0
        for file in sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda each: -each.stat().st_mtime_ns):
            total += file.stat().st_size
            if total > self.most_bytes:
                file.unlink(missing_ok=True)
