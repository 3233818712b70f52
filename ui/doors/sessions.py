"""The routes that the page needs, and whose session each request names. All else is not served.

The page names its session in addresses and bodies, where others may come to read it. A session belongs to the owner who named
it first; nobody else may use it, whatever else the request says.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ui.doors.bodies import body_again
from ui.doors.rates import Rate
from ui.doors.refusal import API, refuse

UPLOAD = f"{API}/upload"
MOST_SESSIONS = 10_000
EVENTS_A_MINUTE, LOGINS_A_MINUTE = 600, 30
_OPEN = rf"{API}/(info/?|app_id/?|user/?|login_check/?|startup-events|theme\.css)"
_PAGE = r"/|/config/?|/logout/?|/theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json|/(static|assets|svelte)/.+"
_HEARTBEAT = rf"{API}/heartbeat/(\w+)"
_SESSION = rf"{API}/(queue/data|upload_progress|file=.+)|{_HEARTBEAT}"
_EVENT = rf"{API}/(queue/join|run/predict)/?|{UPLOAD}"
_NAMES = ("session_hash", "upload_id")


class OwnSessions:
    """`app` for the page's own routes. What belongs to a session needs an owner (else 401) who is the session's own (else 403)
    and asks for no more than 600 events a minute (else 429). `page_open`: entered for as long as a session's page is open."""

    def __init__(self, app: ASGIApp, page_open: Callable[[str], AbstractContextManager[None]]) -> None:
        self._app, self._page_open = app, page_open
        self._owners: dict[str, str] = {}
        self._events, self._logins = Rate(EVENTS_A_MINUTE), Rate(LOGINS_A_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        reads, path = scope["method"] in ("GET", "HEAD"), scope["path"]
        if reads and re.fullmatch(f"{_PAGE}|{_OPEN}", path):
            return await self._app(scope, receive, send)
        if not reads and path.rstrip("/") == "/login":
            return await self._log_in(scope, receive, send)
        if scope["method"] in ("GET", "POST") and re.fullmatch(_SESSION if reads else _EVENT, path):
            return await self._of_a_session(scope, receive, send)
        return await refuse(scope, receive, send, 404, "there is nothing here")

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._logins.allows((scope.get("client") or ("", 0))[0]):
            return await refuse(scope, receive, send, 429, "too many logins; try again in a minute")
        return await self._app(scope, receive, send)

    async def _of_a_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = scope["state"]["owner"]
        if not owner:
            return await refuse(scope, receive, send, 401, "sign in, or reload the page")
        if scope["method"] == "POST" and not self._events.allows(owner):
            return await refuse(scope, receive, send, 429, "too many requests; try again in a minute")
        names = list(_named(Request(scope)))
        if scope["method"] == "POST" and scope["path"] != UPLOAD:
            body = await Request(scope, receive).body()
            receive = body_again(body, receive)
            names.append(_named_inside(body))
        if not all(names):
            return await refuse(scope, receive, send, 400, "the request is no event of the page")
        if not all(self._claim(name, owner) for name in names):
            return await refuse(scope, receive, send, 403, "this session is somebody else's")
        heartbeat = re.fullmatch(_HEARTBEAT, scope["path"])
        with self._page_open(heartbeat[1]) if heartbeat else nullcontext():
            return await self._app(scope, receive, send)

    def _claim(self, name: str, owner: str) -> bool:
        """Whether the session is this owner's; a new one is from now on."""
        if len(self._owners) >= MOST_SESSIONS and name not in self._owners:
            del self._owners[next(iter(self._owners))]
        return self._owners.setdefault(name, owner) == owner


def _named(request: Request) -> Iterator[str]:
    """Sessions and uploads that the address names."""
    heartbeat = re.fullmatch(_HEARTBEAT, request.url.path)
    if heartbeat:
        yield heartbeat[1]
    for name in _NAMES:
        yield from request.query_params.getlist(name)


def _named_inside(body: bytes) -> str:
    """The session that an event names; empty where it names none."""
    try:
        event: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    name = event.get("session_hash") if isinstance(event, dict) else None
    return name if isinstance(name, str) else ""
