"""Finds the folder of a model by its name, in hub layout: config.json, tokenizer.json, weights.

`fast_target` turns the tensors into a running model, and `tokenizer` turns text into tokens.
"""

from pathlib import Path

from decoding.checkpoints.fetch.cache_folder import exclusive, models_folder, sha256_of
from decoding.checkpoints.fetch.embedded import EMBEDDED_NAMES, ensure_embedded
from decoding.checkpoints.fetch.progress import Progress, on_stderr
from decoding.checkpoints.identity import is_whole
from decoding.checkpoints.model_config import ModelConfig, Rope, load_config, read_json
from decoding.checkpoints.weight_files import base_sha256, read_low_bit, read_stored, read_weights, weight_files
from decoding.errors import ModelUnavailable

__all__ = [
    "ModelConfig",
    "Rope",
    "base_sha256",
    "load_config",
    "read_low_bit",
    "read_stored",
    "read_weights",
    "resolve",
    "weight_files",
]


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
    from decoding.checkpoints.fetch import hub  # its client takes a tenth of a question's imports

    if hub.is_id(name):
        return _checked(hub.snapshot(name, revision))
    raise ModelUnavailable(f"no model {name!r}: give 'embedded', a folder, a .gguf file or a hub id like owner/name")


def _converted(path: Path, progress: Progress) -> Path:
    """The hub-layout folder of a GGUF file in the cache, keyed by the file's SHA-256; converts the file first if necessary."""
    from decoding.checkpoints.gguf.convert import convert_gguf  # imports the reader of GGUF files

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
