"""Packs in one compressed file, so that they are made on a processor and trained from on a machine with a GPU and little else.

The file is LZMA over numpy's npz: of each kind of array one column over all packs, and the packs' lengths in it. Columns hold
what is not foreseen: a row's parent is mostly the row before it, a source's target mostly the token that is fed after it. So
they are zeros mostly, and a token takes about half a byte in all. What is read has the same digest (`digest_of`).
"""

import io
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.packs.groups import TrainingDataError
from training.packs.packing import P, Pack

Column = NDArray[Any]
PARTS = ("packs", "held_out")
_SORTED = ("sources", "owners", "teachers")  # neighbours are close to each other
_TYPES = (np.int8, np.int16, np.uint16)  # or as they are


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file holds. about: what its writer said of it, in JSON's types."""

    about: Mapping[str, Any]
    columns: Mapping[str, Column]

    def packs(self, kind: type[P], part: str = "packs") -> list[P]:
        """The packs of `PARTS`, as they were."""
        named = [each.name for each in fields(kind) if each.name != "pairs"]
        split = {name: _split(self.columns[f"{part}/{name}"], self.columns[f"{part}/{name}/lengths"]) for name in named}
        pairs = self.about[part]
        return [
            kind(**_restored({name: split[name][index] for name in named}), pairs=tuple(map(tuple, pairs[index])))
            for index in range(len(pairs))
        ]


def write_packs(path: Path, packs: Sequence[Pack], held_out: Sequence[Pack], about: Mapping[str, Any]) -> int:
    """Write the file, of packs of one kind; returns its size in bytes."""
    columns: dict[str, Column] = {}
    for part, listed in zip(PARTS, (packs, held_out), strict=True):
        foretold = [_foretold(each) for each in listed]
        for name in [each.name for each in fields(packs[0]) if each.name != "pairs"]:
            arrays = [each[name] for each in foretold]
            columns[f"{part}/{name}"] = _narrow(np.concatenate([np.zeros(0, np.int8), *arrays])) if arrays else _NONE
            columns[f"{part}/{name}/lengths"] = np.array([len(each) for each in arrays], np.int32)
    told = {**about, **{part: [each.pairs for each in of] for part, of in zip(PARTS, (packs, held_out), strict=True)}}
    columns["about"] = np.frombuffer(json.dumps(told).encode(), np.uint8)
    plain = io.BytesIO()
    np.savez(plain, **columns)  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f"{path.name}.unfinished")
    staging.write_bytes(lzma.compress(plain.getbuffer(), check=lzma.CHECK_SHA256, preset=6))
    staging.replace(path)
    return path.stat().st_size


def read_packs(path: Path) -> Stored:
    """What the file holds. Raises TrainingDataError."""
    try:
        with np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False) as read:
            columns = dict(read)
        return Stored(json.loads(columns.pop("about").tobytes()), columns)
    except (OSError, lzma.LZMAError, ValueError, KeyError) as error:
        raise TrainingDataError(
            f"{path} cannot be read as packs ({error}): make it with --packs-only, and copy it whole"
        ) from error


_NONE = np.zeros(0, np.int8)


def _foretold(pack: Pack) -> dict[str, Column]:
    """A pack's arrays less what is foreseen of them."""
    arrays: dict[str, Column] = {each.name: getattr(pack, each.name) for each in fields(pack) if each.name != "pairs"}
    changed = {name: np.diff(arrays[name], prepend=np.int32(0)) for name in _SORTED if name in arrays}
    changed["parents"] = arrays["parents"] - _before(pack.rows)
    changed["targets"] = arrays["targets"] - _next_tokens(arrays)
    return arrays | changed


def _restored(stored: Mapping[str, Column]) -> dict[str, Column]:
    arrays = {name: each if each.dtype.kind == "f" else each.astype(np.int32) for name, each in stored.items()}
    for name in _SORTED:
        if name in arrays:
            arrays[name] = np.cumsum(arrays[name], dtype=np.int32)
    arrays["parents"] += _before(len(arrays["tokens"]))
    arrays["targets"] += _next_tokens(arrays)
    return arrays


def _before(rows: int) -> Column:
    return np.arange(-1, rows - 1, dtype=np.int32)


def _next_tokens(arrays: Mapping[str, Column]) -> Column:
    """[targets] the token in the row after each target's source."""
    after = arrays["sources"][: len(arrays["targets"])] + 1
    found: Column = arrays["tokens"][np.minimum(after, len(arrays["tokens"]) - 1)]
    return found


def _narrow(column: Column) -> Column:
    """The column in the smallest type that holds it."""
    if column.dtype.kind == "f" or not len(column):
        return column
    least, most = int(column.min()), int(column.max())
    fits = (each for each in _TYPES if np.iinfo(each).min <= least and most <= np.iinfo(each).max)
    return column.astype(next(fits, column.dtype.type))


def _split(column: Column, lengths: Column) -> list[Column]:
    return np.split(column, np.cumsum(lengths)[:-1]) if len(lengths) else []
