"""A small HTTP server on the loopback address for tests: byte ranges, and the faults that a real network has."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class FileServer:
    """What is served and how; tests change it between requests."""

    files: dict[str, bytes] = field(default_factory=dict)  # "/path" -> content
    ranges: bool = True  # answers Range requests with 206
    cuts: list[int] = field(default_factory=list)  # the next answers break off after so many bytes
    status: int = 200  # any other is an error for every request
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # (method, path, Range header)
    url: str = ""

    def add_hub_model(self, repo: str, files: dict[str, bytes], commit: str = "c0ffee" + "0" * 34) -> None:
        """Serve a model repository as the hub does: listing, description, files."""
        listing = [{"type": "file", "path": name, "size": len(body), "oid": name} for name, body in files.items()]
        about = {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        for revision in ("main", commit):
            self.files[f"/api/models/{repo}/tree/{revision}"] = json.dumps(listing).encode()
        self.files[f"/api/models/{repo}/revision/main"] = json.dumps(about).encode()
        self.files |= {f"/{repo}/resolve/{commit}/{name}": body for name, body in files.items()}

    def add_wheel(self, name: str, file: str, content: bytes) -> None:
        """Serve one wheel on a package index (PEP 503) under /simple/."""
        self.files[f"/simple/{name}/"] = f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode()
        self.files[f"/files/{file}"] = content

    def fetched(self, path: str) -> list[str | None]:
        """Range headers of the GET requests for `path`, in order."""
        return [header for method, asked, header in self.requests if (method, asked) == ("GET", path)]


@contextmanager
def serving() -> Iterator[FileServer]:
    """A running server on a free port of 127.0.0.1."""
    state = FileServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(state: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(send_body=False)

        def do_GET(self) -> None:
            self._answer(send_body=True)

        def _answer(self, send_body: bool) -> None:
            asked = self.headers.get("Range")
            state.requests.append((self.command, self.path, asked))
            content = state.files.get(self.path.partition("?")[0])
            if state.status != 200 or content is None:
                self._refuse(state.status if state.status != 200 else 404)
                return
            start, end = _span(asked, len(content)) if state.ranges else (0, len(content))
            if start >= len(content) > 0:
                self._refuse(416)
                return
            self._headers(content, start, end, partial=state.ranges and asked is not None)
            if send_body:
                self._body(content[start:end])

        def _refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if self.path.startswith("/api/"):
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

        def _headers(self, content: bytes, start: int, end: int, partial: bool) -> None:
            self.send_response(206 if partial else 200)
            kinds = {"simple": "text/html", "api": "application/json"}
            kind = kinds.get(self.path.split("/")[1], "application/octet-stream")
            self.send_header("Content-Type", kind)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            if "/resolve/" in self.path:
                self.send_header("X-Repo-Commit", self.path.split("/resolve/")[1].partition("/")[0])
            self.send_header("Content-Length", str(end - start))
            if state.ranges:
                self.send_header("Accept-Ranges", "bytes")
            if partial:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
            self.end_headers()

        def _body(self, body: bytes) -> None:
            cut = state.cuts.pop(0) if state.cuts and self.path.startswith("/files/") else len(body)
            self.wfile.write(body[:cut])
            if cut < len(body):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def _span(header: str | None, length: int) -> tuple[int, int]:
    """Start and end (exclusive) of `bytes=a-b`, `bytes=a-` or `bytes=-n`."""
    if header is None:
        return 0, length
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, length - int(last)), length
    return int(first), min(length, int(last) + 1) if last else length
