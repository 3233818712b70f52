"""One file from one URL into one place: resumable, verified by checksum, and there only when it is right."""

import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from decoding.checkpoints.fetch.cache_folder import is_storage_trouble, sha256_of
from decoding.checkpoints.fetch.progress import Progress, silent
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
