"""The identity of weights (their SHA-256), and of the target that a head belongs to.

A conversion records in a small file where its weights came from. An adapter that is merged into the weights is part of the
target's identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoding.checkpoints.adapter import Adapter
from decoding.checkpoints.arrays import type_name
from decoding.checkpoints.cache_folder import crc32_of

_FILE = "base.json"
CONVERSION = 2  # increased when the converted files change, so that older ones are converted again


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a converted checkpoint came from."""

    name: str
    gguf_sha256: str
    base_sha256: str  # of the converted weights, see `weights_sha256`
    files: dict[str, tuple[int, int, int]]  # each file of the folder: bytes, time of change in ns, CRC-32
    conversion: int = CONVERSION


def weights_sha256(tensors: Mapping[str, Any]) -> str:
    """SHA-256 over name, dtype, shape and little-endian bytes of every tensor or array, in order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name}\0torch.{type_name(tensors[name])}\0{list(tensors[name].shape)}\0".encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _bytes(tensor: Any) -> memoryview:
    if not isinstance(tensor, np.ndarray):
        import torch

        tensor = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def record(folder: Path, name: str, gguf_sha256: str, base_sha256: str) -> None:
    """Write the origin, with sizes, times and checksums of all files, next to the weights."""
    files = {file.name: (*_stamp(file), crc32_of(file)) for file in sorted(folder.iterdir())}
    origin = Origin(name, gguf_sha256, base_sha256, files)
    (folder / _FILE).write_text(json.dumps(asdict(origin), indent=2) + "\n", encoding="utf-8")


def recorded(folder: Path) -> Origin | None:
    """What `record` wrote; None if there is nothing, or if another version wrote it."""
    try:
        origin = Origin(**json.loads((folder / _FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return origin if origin.conversion == CONVERSION else None


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds a conversion of this version with all its files as they were written. A file whose size or time
    differs is read and its checksum compared."""
    origin = recorded(folder)
    return origin is not None and all(_is_as_written(folder / name, *kept) for name, kept in origin.files.items())


def _is_as_written(file: Path, size: int, changed_ns: int, crc32: int) -> bool:
    try:
        stamp = _stamp(file)
        return stamp == (size, changed_ns) or (stamp[0] == size and crc32_of(file) == crc32)
    except OSError:
        return False


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """The target that a head was trained on: weights, adapter, and the prompts whose answers it learned from."""

    base_sha256: str
    adapter_sha256: str | None = None  # None: no adapter
    prompt_hash: str | None = None  # None: no prompts of ours

    def difference(self, other: TargetIdentity) -> str | None:
        """What differs, in words; None if both are the same target."""
        pairs = {
            "base": (self.base_sha256, other.base_sha256),
            "adapter": (self.adapter_sha256, other.adapter_sha256),
            "prompts": (self.prompt_hash, other.prompt_hash or self.prompt_hash),  # a decoder has no prompts
        }
        parts = [
            f"{name} {(mine or 'none')[:12]} and not {(theirs or 'none')[:12]}"
            for name, (mine, theirs) in pairs.items()
            if mine != theirs
        ]
        return ", ".join(parts) or None


def target_identity(base_sha256: str, adapter: Adapter | None, prompts: object = None) -> TargetIdentity:
    """prompts: any JSON value that identifies the prompts' wording (a version, a hash); None: no prompts of ours."""
    prompt_hash = None if prompts is None else hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    return TargetIdentity(base_sha256, adapter_sha256(adapter) if adapter else None, prompt_hash)


def adapter_sha256(adapter: Adapter) -> str:
    """SHA-256 of the changes that an adapter makes, independent of the format from which it was read."""
    factors = {
        f"{m}.{part}": array for m in adapter.factors for part, array in zip("ab", adapter.arrays(m), strict=True)
    }
    return hashlib.sha256(f"{weights_sha256(factors)} {adapter.scale!r}".encode()).hexdigest()
