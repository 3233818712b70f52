"""A model's matrices in 8 bits as the kernels read them, in the user's cache: packed once, mapped afterwards instead of
read.

The layers are rotated as `decoding.targets.int8.packing` says. Beyond that, the inputs of the down projection get a
Hadamard transform, which the forward applies, and the final norm's weight is in the LM head, which reads the rotated
stream. Heads are padded to multiples of 64 numbers, their halves apart; the stream, the inner layer and the vocabulary
likewise. Of gate and up there are 64 gates, then their ups, and so on: those that one transform mixes.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.cache_folder import cache_root, crc32_of, exclusive, flush, whole_folder
from decoding.checkpoints.model_config import ModelConfig
from decoding.engine.sampler import Floats
from decoding.engine.target import TokenSet
from decoding.errors import ModelUnavailable
from decoding.targets.int8.buffers import Longs, address
from kernels.cpu.job import BLOCK, Model, aligned, table_of

Arrays = dict[str, npt.NDArray[Any]]
NAMES = (
    "matrices",
    "scales",
    "offsets",
    "biases",
    "rotated_embedding",
    "final_norm",
    "qk_norms",
    "embedding",
    "lm_head",
)
_SUMS = "crc32.json"
_GROUP, _STEP = 16, 4  # outputs and inputs of 64 packed bytes
_FORMAT = 4  # raised when the numbers change, so that older folders are made again
_KEPT = 3  # models, and adapters on them
_MOST_ROWS = 4096  # rows: 9 MB of the embedded model's


def padded(count: int) -> int:
    """The next multiple of a block of outputs."""
    return -(-count // BLOCK) * BLOCK


def head_room(config: ModelConfig) -> int:
    """Numbers of a padded head."""
    return padded(config.head_dim)


def kept_packed(files: Iterable[Path], make: Callable[[], Arrays]) -> Arrays:
    """The packed model of these files, those of an adapter included, mapped from the cache.

    It is made first where it is not there, or its files have another size or time than they were written with; only
    `damaged_models` reads them whole. Where the cache cannot be written, a line on stderr says so, and the
    model stays in memory.
    """
    folder = cache_root() / "packed" / packed_key(files)
    if (found := _mapped(folder)) is not None:
        return found
    made = make()
    try:
        with exclusive("packed"), whole_folder(folder) as unfinished:
            _write(unfinished, made)
        keep_newest(folder.parent)
    except (OSError, ModelUnavailable) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        print(f"sqlagent: the int8 weights cannot be kept in {folder.parent} ({reason}); going on", file=sys.stderr)
        return made
    return _mapped(folder) or made


def damaged_models() -> list[Path]:
    """Folders of packed models whose checksums are wrong, which takes a second; such a folder can be removed."""
    return [folder for folder in sorted((cache_root() / "packed").glob("*/")) if not _is_intact(folder)]


def _write(folder: Path, arrays: Arrays) -> None:
    """The arrays, their sizes and checksums, on the disk before the folder gets its name."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    sums = {file.name: (*_stamp(file), crc32_of(file)) for file in folder.glob("*.npy")}
    (folder / _SUMS).write_text(json.dumps(sums))
    for file in folder.iterdir():
        flush(file)


def _mapped(folder: Path) -> Arrays | None:
    try:
        sums = json.loads((folder / _SUMS).read_text())
        if any(tuple(sums[f"{name}.npy"][:2]) != _stamp(folder / f"{name}.npy") for name in NAMES):
            return None
        found = {
            name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in NAMES
        }  # "c": torch, for heads, takes no others
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with suppress(OSError):  # a cache that may only be read
        os.utime(folder)  # used last
    return found


def _stamp(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _is_intact(folder: Path) -> bool:
    try:
        sums = json.loads((folder / _SUMS).read_text())
        return all(sums[f"{name}.npy"][2] == crc32_of(folder / f"{name}.npy") for name in NAMES)
    except TypeError:  # an older format, which is not read any more
        return True
    except (OSError, ValueError, KeyError):
        return False


def keep_newest(parent: Path) -> None:
    """Remove all folders in `parent` but those that were used last."""
    folders = sorted((each for each in parent.iterdir() if each.is_dir()), key=lambda each: -each.stat().st_mtime)
    for old in folders[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def packed_key(files: Iterable[Path]) -> str:
    """What changes with the packed model of these files."""
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((_FORMAT, stats)).encode()).hexdigest()[:32]


class HeadPart:
    """A model whose LM head has some tokens' rows alone: those of the sets that were asked for last, each row packed once.

    rows, scales, offsets: of the whole LM head, as they are packed. spare: rows beyond those of a set, before others go.
    """

    def __init__(
        self,
        model: Model,
        rows: npt.NDArray[np.int8],
        scales: npt.NDArray[np.float32],
        offsets: npt.NDArray[np.int32],
        spare: int = 512,
    ) -> None:
        self._model, self.spare, self._steps = model, spare, model.hidden // _STEP
        self._whole = rows.view(np.int32).reshape(-1, self._steps, _GROUP), scales, offsets
        self._place = np.full(len(scales), -1, np.int64)  # of each token among the rows here
        self._begin(0)

    def _begin(self, room: int) -> None:
        """Rows for so many tokens, of which there are none yet."""
        self._place[:] = -1
        self.count = 0
        self._places: WeakKeyDictionary[TokenSet, Longs] = WeakKeyDictionary()
        count = padded(room)
        self._rows = aligned((count // _GROUP, self._steps, _GROUP), np.int32)
        self._rows[:] = 0
        self._scales, self._offsets = np.zeros(count, np.float32), np.zeros(count, np.int32)
        places = (address(self._rows), address(self._scales), address(self._offsets), 0)  # no biases
        self._tables = np.array([[place] for place in places], np.int64)

    def places(self, tokens: TokenSet) -> Longs:
        """[tokens] where the logits of a set are among the `count` that this model computes."""
        if (found := self._places.get(tokens)) is None:
            new = tokens.ids[self._place[tokens.ids] < 0]
            if self.count + len(new) > len(self._scales):
                self._begin(len(tokens) + self.spare)
                new = tokens.ids
            self._add(new)
            found = self._places[tokens] = self._place[tokens.ids]
        return found

    def _add(self, ids: Longs) -> None:
        if not len(ids):
            return
        (rows, scales, offsets), new = self._whole, np.arange(self.count, self.count + len(ids))
        self._rows[new // _GROUP, :, new % _GROUP] = rows[ids // _GROUP, :, ids % _GROUP]
        self._scales[new], self._offsets[new], self._place[ids] = scales[ids], offsets[ids], new
        self.count += len(ids)
        names = ("matrices", "scales", "offsets", "biases")
        tables = {name: address(row) for name, row in zip(names, self._tables, strict=True)}
        self.table = table_of(self._model._replace(layers=0, vocab=self.count, **tables))


class StoredRows:
    """The rows of an fp32 array; None: there are none.

    Of a mapped array they are read from its file: the kernel would map the pages around each of them, which is half of an
    embedding after a few hundred tokens. What was read is kept, because texts about one database repeat their words.
    """

    def __init__(self, rows: npt.NDArray[np.float32] | None) -> None:
        self._rows = rows
        self._start, self._file = 0, -1
        self._kept: dict[int, npt.NDArray[np.float32]] = {}
        if isinstance(rows, np.memmap) and rows.flags.c_contiguous and hasattr(os, "preadv"):
            self._start, self._file = rows.offset, os.open(str(rows.filename), os.O_RDONLY)
            finalize(self, os.close, self._file)

    def take(self, wanted: Longs, out: Floats) -> None:
        """Copy rows into `out` [rows, columns], which lies in one piece. Raises OSError where they cannot be read."""
        assert self._rows is not None
        if self._file < 0:
            np.take(self._rows, wanted, 0, out=out)
            return
        for row, place in zip(out, wanted.tolist(), strict=True):
            row[...] = self._kept[place] if place in self._kept else self._read(place)

    def _read(self, place: int) -> Any:
        assert self._rows is not None
        row: Any = np.empty(self._rows.shape[1], np.float32)
        if os.preadv(self._file, [row], self._start + place * row.nbytes) != row.nbytes:
            raise OSError("the packed model's file is shorter than it was; remove it, and it is made again")
        if len(self._kept) == _MOST_ROWS:
            self._kept.clear()
        self._kept[place] = row
        return row
