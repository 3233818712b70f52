"""Models from the Hugging Face hub, through its own client and cache; only the files that are needed."""

import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from decoding.checkpoints.cache_folder import is_storage_trouble
from decoding.checkpoints.weight_files import weight_files
from decoding.errors import ModelUnavailable

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_PROBE_S = 10.0
_TEXT_FILES = ("*.json", "*.jinja", "tokenizer.model")


def is_id(name: str) -> bool:
    """Whether `name` looks like a hub id, `owner/name`; a path to a GGUF file does not."""
    return _ID.fullmatch(name) is not None and not name.endswith(".gguf")


def snapshot(repo: str, revision: str | None = None, *, refresh: bool = False) -> Path:
    """Folder of a hub checkpoint, from the hub's cache when all of it is there and no `refresh` is asked for.

    Raises ModelUnavailable.
    """
    if not refresh and (cached := cached_snapshot(repo, revision)):
        return cached
    return _plainly(repo, lambda: _fetch(repo, revision))


def cached_snapshot(repo: str, revision: str | None = None) -> Path | None:
    """The folder in the hub's cache, or None when there is none or it is not whole."""
    try:
        # The pattern keeps newer clients from missing the files that were never wanted; see _is_whole for the others.
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns="config.json", local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_whole(folder) else None


def file(repo: str, name: str, revision: str, folder: Path) -> Path:
    """One file of a hub repository, copied into `folder`. Raises ModelUnavailable."""
    return _plainly(repo, lambda: _fetch_file(repo, name, revision, folder))


def _fetch_file(repo: str, name: str, revision: str, folder: Path) -> Path:
    _probe()
    return Path(hf_hub_download(repo, name, revision=revision, local_dir=folder))


def _probe() -> None:
    """Fails at once where the client would retry for 25 s: no network, or a name that does not resolve."""
    if constants.HF_HUB_OFFLINE:
        return  # the client refuses by itself, and says why
    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=_PROBE_S).close()
    except urllib.error.HTTPError:
        pass  # an answer is an answer
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # the client has certificates of its own
            raise


def _fetch(repo: str, revision: str | None) -> Path:
    _probe()
    names = HfApi().list_repo_files(repo, revision=revision)
    return Path(snapshot_download(repo, revision=revision, allow_patterns=[*_TEXT_FILES, _weights_pattern(names)]))


def _weights_pattern(names: list[str]) -> str:
    """Safetensors when there are any at the top of the repository, else pickles; never both."""
    top = [name for name in names if "/" not in name]
    if any(name.startswith("model") and name.endswith(".safetensors") for name in top):
        return "model*.safetensors"
    return "pytorch_model*.bin"


def _is_whole(folder: Path) -> bool:
    try:
        weight_files(folder)
    except ModelUnavailable:
        return False
    return (folder / "config.json").exists()


def _plainly(repo: str, fetch: Callable[[], T]) -> T:
    """`fetch()`, with the client's many errors as one line that says what to do."""
    try:
        return fetch()
    except GatedRepoError as error:
        raise ModelUnavailable(f"model {repo} is gated: accept its licence on the hub, then `hf auth login`") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelUnavailable(f"the hub has no model {repo} (or no such revision): check the name") from error
    except Exception as error:  # transport errors belong to the client's own HTTP library
        if is_storage_trouble(error):
            raise ModelUnavailable(f"model {repo} cannot be stored ({error}): make room in the hub's cache") from error
        reason = str(error).strip().partition("\n")[0]
        raise ModelUnavailable(f"model {repo} is not in the cache and the hub cannot be reached: {reason}") from error
