"""Finds a model's folder, adapter and masks by its name: embedded, on the hub, a GGUF file or a folder.

It also lists and describes the models on this machine: the embedded one, converted GGUF files, checkpoints in the hub's cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from decoding.checkpoints.adapter import Adapter, check_base, read_adapter
from decoding.checkpoints.arrays import type_name
from decoding.checkpoints.cache_folder import Progress, exclusive, models_folder, on_stderr, sha256_of
from decoding.checkpoints.embedded import (
    EMBEDDED_NAMES,
    SMOLLM2,
    cached_snapshot,
    embedded_folder,
    ensure_embedded,
    hub_snapshot,
    is_id,
)
from decoding.checkpoints.identity import is_whole, recorded
from decoding.checkpoints.mask_adapter import MaskAdapter, read_mask_adapter
from decoding.checkpoints.model_config import load_config, read_json
from decoding.checkpoints.weight_files import base_sha256, read_stored, weight_files
from decoding.errors import ModelUnavailable, UnsupportedModel


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
    if is_id(name):
        return _checked(hub_snapshot(name, revision))
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


_WEIGHTS = Path(__file__).parents[1] / "weights"
SHIPPED_ADAPTER = _WEIGHTS / "sqlagent-135m"
SHIPPED_BASE = _WEIGHTS / "base"  # what belongs to the embedded model without an adapter
Choice = Path | Literal["auto", "none"]


def chosen_adapter(name: str, path: Path, wanted: Choice, any_base: bool = False) -> Adapter | None:
    """The adapter that `wanted` means for the model `name` in `path`: see `decoding.serving.load.load_text_decoder`."""
    if wanted == "none" or (wanted == "auto" and not (name in EMBEDDED_NAMES and SHIPPED_ADAPTER.is_dir())):
        return None
    found = read_adapter(SHIPPED_ADAPTER if wanted == "auto" else Path(wanted))
    check_base(found, base_sha256(path), force=any_base)
    return found


def chosen_masks(name: str, adapter: Adapter | None) -> MaskAdapter | None:
    """The mask adapter next to the adapter of a model, or for the embedded one without an adapter the one that comes with it.

    Raises ModelUnavailable for a damaged file.
    """
    if adapter is None:
        return read_mask_adapter(SHIPPED_BASE) if name in EMBEDDED_NAMES else None
    return read_mask_adapter(adapter.files[0].parent) if adapter.files else None


Kind = Literal["embedded", "gguf", "hub", "folder"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model on this machine."""

    name: str  # what `--model` takes
    kind: Kind
    folder: Path | None  # None: not fetched yet
    size_bytes: int  # on disk
    base_sha256: str | None  # None: not recorded at conversion; `show_model` computes it

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "ready": self.folder is not None,
            "size_mb": round(self.size_bytes / 1e6, 1),
            "path": str(self.folder) if self.folder else None,
            "base_sha256": self.base_sha256,
        }


def list_models() -> tuple[Model, ...]:
    """The embedded model first, fetched or not, then the other models in the caches, by name."""
    folder = embedded_folder()
    embedded = _model("embedded", "embedded", folder if is_whole(folder) else None)
    converted = [path for path in sorted(models_folder().glob("gguf-*")) if is_whole(path)]
    return (embedded, *(_model(str(path), "gguf", path) for path in converted), *_hub_models())


def show_model(name: str) -> dict[str, Any]:
    """A model's description, as plain JSON values. It is fetched first if necessary, and all its weights are read.

    `family` is None for an architecture that only transformers runs. Raises ModelUnavailable.
    """
    folder = resolve(name)
    tensors = dict(read_stored(folder))
    at_hand = _model(name, _kind(name, folder), folder).to_dict() | {"base_sha256": base_sha256(folder)}
    dtypes = Counter(type_name(tensor) for tensor in tensors.values())
    weights = {
        "parameters": sum(prod(tensor.shape) for tensor in tensors.values()),
        "dtype": dtypes.most_common(1)[0][0],
    }
    return at_hand | weights | _architecture(folder)


def _architecture(folder: Path) -> dict[str, Any]:
    try:
        config = load_config(folder)
    except UnsupportedModel:
        return {"family": None}
    names = ("family", "layers", "hidden_size", "heads", "kv_heads", "vocab_size", "max_positions")
    return {name: getattr(config, name) for name in names}


def pull(name: str, progress: Progress = on_stderr, *, revision: str | None = None) -> Model:
    """Fetch a model; a hub model that is in the cache is updated. Raises ModelUnavailable."""
    if name not in EMBEDDED_NAMES and is_id(name) and not Path(name).expanduser().exists():
        progress(f"fetching {name} from the hub", 0, 0)
        return _model(name, "hub", hub_snapshot(name, revision, refresh=True))
    folder = resolve(name, progress, revision=revision)
    return _model(name, _kind(name, folder), folder)


def _kind(name: str, folder: Path) -> Kind:
    if name in EMBEDDED_NAMES:
        return "embedded"
    if folder.parent == models_folder():
        return "gguf"
    return "folder" if Path(name).expanduser().exists() else "hub"


def _model(name: str, kind: Kind, folder: Path | None) -> Model:
    if folder is None:
        return Model(name, kind, None, 0, None)
    origin = recorded(folder)
    return Model(name, kind, folder, _size_bytes(folder), origin.base_sha256 if origin else None)


def _size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def _hub_models() -> list[Model]:
    """Complete checkpoints in the hub's cache, without repositories of which other programs fetched only single files."""
    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    names = sorted(repo.repo_id for repo in repos if repo.repo_type == "model" and repo.repo_id != SMOLLM2.hub_repo)
    folders = [(name, cached_snapshot(name)) for name in names]
    return [_model(name, "hub", folder) for name, folder in folders if folder is not None]
