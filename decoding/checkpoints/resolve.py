"""Finds the folder of a model by its name, in hub layout: config.json, tokenizer.json, weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from decoding.checkpoints.cache_folder import Progress, exclusive, models_folder, on_stderr, sha256_of
from decoding.checkpoints.embedded import EMBEDDED_NAMES, ensure_embedded
from decoding.checkpoints.identity import is_whole
from decoding.checkpoints.model_config import read_json
from decoding.checkpoints.weight_files import weight_files
from decoding.errors import ModelUnavailable

if TYPE_CHECKING:
    pass


def resolve(name: str = "embedded", progress: Progress = on_stderr, *, revision: str | None = None) -> Path:
    """Folder of the checkpoint of this name, which is fetched and converted first if necessary.

    `name`: "embedded" (also "sqlagent-135m"), a folder in hub layout, a .gguf file, or a hub id `owner/name` (of which
    `revision` is a branch, tag or commit). A hub model that is complete in the cache is used as it is, without any network
    access. Raises ModelUnavailable or UnsupportedModel.
    """
    if name in EMBEDDED_NAMES:
        return ensure_embedded(progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.is_file():
        return _converted(path, progress)
    from decoding.checkpoints import hub

    if hub.is_id(name):
        return _checked(hub.snapshot(name, revision))
    raise ModelUnavailable(f"no model {name!r}: give 'embedded', a folder, a .gguf file or a hub id like owner/name")


def _converted(path: Path, progress: Progress) -> Path:
    """The hub-layout folder of a GGUF file in the cache, keyed by the file's SHA-256; converts the file first if necessary."""
    from decoding.checkpoints.gguf import convert_gguf  # imports the reader of GGUF files

    if path.suffix != ".gguf":
        raise ModelUnavailable(f"{path} is no model: give a folder in hub layout or a .gguf file")
    digest = sha256_of(path, progress, f"checking {path.name}")
    folder = models_folder() / f"gguf-{digest[:16]}"
    if not is_whole(folder):
        with exclusive(folder.name):
            if not is_whole(folder):
                convert_gguf(path, folder, progress, name=path.stem, gguf_sha256=digest)
    return folder


def _checked(path: Path) -> Path:
    read_json(path / "config.json")
    weight_files(path)
    return path
