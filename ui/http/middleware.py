"""Middleware of the servers: bodies, headers, hosts and rates of requests.

- Names that a server answers to, and whose pages may use it. A page on the web can make a browser send requests to this
  machine: under the page's own name if that name is made to mean 127.0.0.1 (DNS rebinding), and under ours from another origin.
  The first is refused by the Host header, the second by the headers in which browsers say where a request comes from. Programs
  that are no browsers send none of those.
- Request bodies are read whole before the application is called, so that a slow sender holds up nobody else; a slow head is
  cut.
- Rate limits over a sliding window.
- Headers that tell a browser what not to do with an answer.
- The socket of a server, and a server in the background.

A refused request gets a status and one line of plain text, or JSON for the page's own script.
"""

import gc
import logging
import socket
import threading
from asyncio import CancelledError, TimerHandle, timeout
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/gradio_api"


async def refuse(scope: Scope, receive: Receive, send: Send, status: int, message: str) -> None:
    """Answer with an error, and close the connection: what the caller still sends is not read."""
    headers = {"connection": "close", "cache-control": "no-store"}
    by_script = scope["type"] == "http" and scope["path"].startswith(API)
    response = (
        JSONResponse({"error": message}, status, headers)
        if by_script
        else PlainTextResponse(message + "\n", status, headers)
    )
    await response(scope, receive, send)


MOST_KEYS = 10_000


class Rate:
    """At most `most` events of one key within `seconds`. For one thread; the keys that were used longest ago are forgotten."""

    def __init__(self, most: int, seconds: float = 60.0) -> None:
        self._most, self._seconds = most, seconds
        self._events: dict[str, deque[float]] = {}

    def is_full(self, key: str) -> bool:
        """Whether one more event of the key would be too many."""
        events = self._events.get(key, deque())
        while events and events[0] < monotonic() - self._seconds:
            events.popleft()
        return len(events) >= self._most

    def count(self, key: str) -> None:
        """An event has happened."""
        events = self._events.pop(key, deque(maxlen=self._most))
        events.append(monotonic())
        self._events[key] = events
        if len(self._events) > MOST_KEYS:
            del self._events[next(iter(self._events))]

    def allows(self, key: str) -> bool:
        """Count an event, unless it would be too many."""
        if self.is_full(key):
            return False
        self.count(key)
        return True


SAFE: Mapping[str, str] = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""No page shows ours in a frame, no type is guessed, no address is told to others, no other page reads or opens ours."""


class SafeHeaders:
    """`app` with SAFE and a Content-Security-Policy on every answer."""

    def __init__(self, app: ASGIApp, policy: str = "default-src 'none'; frame-ancestors 'none'") -> None:
        self._app, self._headers = app, {**SAFE, "content-security-policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = ("0.0.0.0", "::", "")


def trusted(app: ASGIApp, host: str, more: Sequence[str] = ()) -> ASGIApp:
    """`app` for requests to this machine's own names, the address `host` that it listens on, and the names in `more`, from no
    page but its own. Others get 400 or 403."""
    own = [] if host in _EVERYWHERE else [host]
    names = [f"[{name}]" if ":" in name else name for name in (*LOOPBACK, *own, *more)]
    return TrustedHostMiddleware(SameOrigin(app, more), names, www_redirect=False)


class SameOrigin:
    """Refuses what pages of other origins send; following a link is allowed. `more`: host names whose pages may do it, for a
    proxy that hands on another Host than the browser sees."""

    def __init__(self, app: ASGIApp, more: Sequence[str] = ()) -> None:
        self._app, self._more = app, {name.lower() for name in more}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        if not self._is_own(headers):
            return await refuse(scope, receive, send, 403, "pages of other sites may not use this server")
        if headers.get("x-forwarded-host", "").partition(":")[0].lower() not in self._more:  # the page would believe it
            scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"x-forwarded-host"]}
        return await self._app(scope, receive, send)

    def _is_own(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None:
            followed_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            return headers.get("sec-fetch-site", "none") in ("none", "same-origin") or followed_link
        try:
            page = urlsplit(origin.lower())
        except ValueError:
            return False
        return bool(page.netloc) and (page.netloc == headers.get("host", "").lower() or page.hostname in self._more)


DEADLINE_S = 15.0


class WholeBody:
    """Calls `app` once the body has come: at most `most_bytes`, else 413; within `deadline_s`, else 408. `streamed`: paths
    whose routes read the body themselves."""

    def __init__(
        self, app: ASGIApp, most_bytes: int, deadline_s: float = DEADLINE_S, streamed: Collection[str] = ()
    ) -> None:
        self._app, self._most_bytes, self._deadline_s, self._streamed = app, most_bytes, deadline_s, streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._streamed:
            return await self._app(scope, receive, send)
        try:
            async with timeout(self._deadline_s):
                body = await _read(receive, self._most_bytes)
        except TimeoutError:
            return await refuse(
                scope, receive, send, 408, f"the request took longer than {self._deadline_s:g} s to come"
            )
        if body is not None and len(body) > self._most_bytes:
            told = f"the request is longer than {self._most_bytes >> 20} MiB"
            return await refuse(scope, receive, send, 413, told)
        if body is not None:  # else who asked is gone
            await self._app(scope, body_again(body, receive), send)
        return None


async def _read(receive: Receive, most_bytes: int) -> bytes | None:
    """The body, cut soon after `most_bytes`; None when the other side hung up."""
    parts, length, more = [], 0, True
    while more and length <= most_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        more = message.get("more_body", False)
    return b"".join(parts)


def body_again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands on a body which was read already, and then whatever comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


HEAD_DEADLINE_S = 15.0


def heads_in_time() -> Any:
    """uvicorn's HTTP protocol, which closes a connection whose request head is not whole after HEAD_DEADLINE_S. uvicorn itself
    waits for ever, so that a few thousand half heads would take every file descriptor."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class HeadsInTime(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _timer: TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
            elif self._timer is None:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._timer = self.loop.call_later(HEAD_DEADLINE_S, self._close_late)

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close_late(self) -> None:
            self._timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return HeadsInTime


FIRST_PORT, PORTS = 7860, 100


def listener(host: str, port: int | None) -> socket.socket:
    """A socket that listens on the port, or on the first free one from 7860 on. Raises OSError."""
    if port is not None:
        return _bound(host, port)
    for each in range(FIRST_PORT, FIRST_PORT + PORTS):
        with suppress(OSError):
            return _bound(host, each)
    return _bound(host, FIRST_PORT)  # says what is wrong


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(256)
    except OSError:
        bound.close()
        raise
    return bound


def in_background(app: ASGIApp, listening: socket.socket) -> Callable[[], None]:
    """Serve an application in a thread. Returns what stops the server; its requests get a second to end, and streams are then
    cut."""
    import uvicorn

    async def cut(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except CancelledError:
            if not server.should_exit:
                raise

    config = uvicorn.Config(
        cut,
        http=heads_in_time(),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    gc.freeze()  # what is loaded stays; looking through it again and again would hold up answers
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="chat-server", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        sleep(0.01)

    def stop() -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # that streams are cut is no news
        server.should_exit = True
        thread.join(timeout=10)

    return stop
