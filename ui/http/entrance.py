"""Who is admitted: tokens, passwords, and whose session a request names.

The token comes once, in the printed address; the browser then holds a cookie in its place, and the address bar shows it no
longer. A second cookie tells browsers apart. It stays, so that conversations are found again after a restart. Only a digest of
it is kept, so that neither the archive nor the log holds what would admit somebody. Passwords may be guessed only so often.

Only the routes that the page needs are served. The page names its session in addresses and bodies, where others may read it. A
session belongs to the owner who named it first; nobody else may use it, whatever else the request says.
"""

import hashlib
import hmac
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.http.middleware import API, Rate, body_again, refuse

WRONG_PER_NAME, WRONG_IN_ALL = 5, 60  # a minute


class Logins:
    """Whether a name and a password belong together, asked as Gradio asks it: on the event loop, so one after another.

    After five wrong passwords for a name in a minute, or sixty for any names, no further one is looked at in that minute.
    """

    def __init__(self, users: Sequence[tuple[str, str]]) -> None:
        self._users = dict(users)
        self._wrong, self._wrong_in_all = Rate(WRONG_PER_NAME), Rate(WRONG_IN_ALL)

    def __call__(self, name: str, password: str) -> bool:
        """Raises HTTPException 429 where too many were wrong."""
        if self._wrong.is_full(name) or self._wrong_in_all.is_full(""):
            raise HTTPException(429, "too many wrong passwords; try again in a minute", {"retry-after": "60"})
        expected = self._users.get(name, "")
        right = hmac.compare_digest(password.encode(), expected.encode()) and name in self._users
        if not right:
            self._wrong.count(name)
            self._wrong_in_all.count("")
        return right


VISITOR = "sqlagent-visitor"
A_YEAR_S = 365 * 24 * 3600
NEW_BROWSERS = 120  # from one address in a minute
_RESTARTED = "The server was restarted. Open the address in its terminal."
_NEEDS_TOKEN = "open the address that was printed when this server was started: it holds a token"

Cookies = Mapping[str, str]


class Entrance:
    """`app` for those who have the token (None: for everybody), each as an owner: `scope["state"]["owner"]` is "user:NAME"
    where `user_of` finds who signed in by the cookies, else "browser:DIGEST", and empty for a browser without a name.

    Two servers on one machine share a browser's cookies: `port` tells their tokens apart.
    """

    def __init__(
        self, app: ASGIApp, token: str | None, port: int, user_of: Callable[[Cookies], str | None] | None = None
    ) -> None:
        self._app, self._token, self._user_of = app, token, user_of
        self._key_name = f"sqlagent-key-{port}"
        self._key = hmac.digest((token or "").encode(), b"cookie", "sha256").hex()
        self._new = Rate(NEW_BROWSERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        cookies = cookie_parser(Headers(scope=scope).get("cookie", ""))
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token") if scope["path"] == "/" else None
        if given and self._token is not None:
            return await self._enter(given[0], cookies, scope, receive, send)
        if self._token is not None and not _same(cookies.get(self._key_name, ""), self._key):
            told = _RESTARTED if scope["path"].startswith(API) else _NEEDS_TOKEN
            return await refuse(scope, receive, send, 401, told)
        visitor = cookies.get(VISITOR, "")
        scope.setdefault("state", {})["owner"] = self._owner(visitor, cookies)
        if scope["path"] != "/" or len(visitor) == 43:
            return await self._app(scope, receive, send)
        client = (scope.get("client") or ("", 0))[0]
        if not self._new.allows(client):
            return await refuse(scope, receive, send, 429, "too many new browsers; try again in a minute")
        return await self._app(scope, receive, self._naming(scope, send))

    async def _enter(self, given: str, cookies: Cookies, scope: Scope, receive: Receive, send: Send) -> None:
        if not _same(given, self._token or ""):
            return await refuse(scope, receive, send, 401, f"wrong token: {_NEEDS_TOKEN}")
        chat = parse_qs(scope["query_string"].decode("latin-1")).get("chat", [""])[0]
        to = f"/?chat={chat}" if chat.isalnum() else "/"
        response = RedirectResponse(to, 303, {"cache-control": "no-store"})
        self._set(response, scope, self._key_name, self._key)  # a bookmark works for as long as the token does
        return await response(scope, receive, send)

    def _naming(self, scope: Scope, send: Send) -> Send:
        """Sends a new browser's name along."""
        cookie = Response()
        self._set(cookie, scope, VISITOR, token_urlsafe(32))

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", cookie.headers["set-cookie"])
            await send(message)

        return sent

    def _set(self, response: Response, scope: Scope, name: str, value: str) -> None:
        is_tls = "https" in (scope["scheme"], Headers(scope=scope).get("x-forwarded-proto"))
        response.set_cookie(name, value, max_age=A_YEAR_S, httponly=True, samesite="lax", secure=is_tls)

    def _owner(self, visitor: str, cookies: Cookies) -> str:
        if self._user_of is not None:
            user = self._user_of(cookies)
            return f"user:{user}" if user else ""
        return f"browser:{hashlib.sha256(visitor.encode()).hexdigest()[:32]}" if visitor else ""


def kept_token(folder: Path) -> str:
    """A token that stays the same from one start to the next, so that an open page and a bookmark go on; a file that only this
    user can read holds it. A new one each time where that file cannot be kept or others could read it."""
    path, fresh = folder / "chat-token", token_urlsafe(24)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError), open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(fresh)
        status, token = path.lstat(), path.read_text()
    except (OSError, UnicodeError):
        return fresh
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return token if is_ours and len(token) == len(fresh) else fresh


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


UPLOAD = f"{API}/upload"
MOST_SESSIONS = 10_000
EVENTS_A_MINUTE, READS_A_MINUTE, LOGINS_A_MINUTE = 600, 1200, 30
STREAMS, STREAMS_IN_ALL = 40, 1000  # open at once: of one owner, and of all; a page holds two
LONGEST_PATH = 2000
_OPEN = rf"{API}/(info/?|app_id/?|user/?|login_check/?|startup-events|theme\.css)"
_PAGE = r"/|/config/?|/logout/?|/theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json|/(static|assets|svelte)/.+"
_STREAM = f"{API}/queue/data"
_HEARTBEAT = rf"{API}/heartbeat/(\w+)"
_SESSION = rf"{API}/(queue/data|upload_progress|file=.+)|{_HEARTBEAT}"
_EVENT = rf"{API}/(queue/join|run/predict)/?|{UPLOAD}"
_NAMES = ("session_hash", "upload_id")


class OwnSessions:
    """`app` for the page's own routes. What belongs to a session needs an owner (else 401) who is the session's own (else 403),
    asks for no more than 600 events and 1,200 files or streams a minute, and holds no more than 40 streams open (else 429).

    `page_open`: entered for as long as a session's page is open. `handlers`: numbers of the events that the page has; others
    get 400."""

    def __init__(
        self, app: ASGIApp, page_open: Callable[[str], AbstractContextManager[None]], handlers: Container[object]
    ) -> None:
        self._app, self._page_open, self._handlers = app, page_open, handlers
        self._owners: dict[str, str] = {}
        self._streams: Counter[str] = Counter()
        self._events, self._reads, self._logins = Rate(EVENTS_A_MINUTE), Rate(READS_A_MINUTE), Rate(LOGINS_A_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        reads, path = scope["method"] in ("GET", "HEAD"), scope["path"]
        if len(path) > LONGEST_PATH:
            return await refuse(scope, receive, send, 414, "the address is too long")
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
        if not (self._events if scope["method"] == "POST" else self._reads).allows(owner):
            return await refuse(scope, receive, send, 429, "too many requests; try again in a minute")
        names = list(_named(Request(scope)))
        if scope["method"] == "POST" and scope["path"] != UPLOAD:
            body = await Request(scope, receive).body()
            receive = body_again(body, receive)
            names.append(self._named_inside(body))
        if not all(names):
            return await refuse(scope, receive, send, 400, "the request is no event of the page")
        if scope["path"] == _STREAM and not all(name in self._owners for name in names):
            return await refuse(scope, receive, send, 404, "there is no such session")
        if not all(self._claim(name, owner) for name in names):
            return await refuse(scope, receive, send, 403, "this session is somebody else's")
        heartbeat = re.fullmatch(_HEARTBEAT, scope["path"])
        if heartbeat is None and scope["path"] != _STREAM:
            return await self._app(scope, receive, send)
        if self._streams[owner] >= STREAMS or self._streams.total() >= STREAMS_IN_ALL:
            return await refuse(scope, receive, send, 429, "too many pages are open; close some")
        with self._stream_of(owner), self._page_open(heartbeat[1]) if heartbeat else nullcontext():
            return await self._app(scope, receive, send)

    @contextmanager
    def _stream_of(self, owner: str) -> Iterator[None]:
        self._streams[owner] += 1
        try:
            yield
        finally:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]

    def _claim(self, name: str, owner: str) -> bool:
        """Whether the session is this owner's; a new one is from now on."""
        if len(self._owners) >= MOST_SESSIONS and name not in self._owners:
            del self._owners[next(iter(self._owners))]
        return self._owners.setdefault(name, owner) == owner

    def _named_inside(self, body: bytes) -> str:
        """The session that an event of the page names; empty where it names none."""
        try:
            event: Any = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        if (
            not isinstance(event, dict)
            or type(event.get("fn_index")) is not int
            or event["fn_index"] not in self._handlers
        ):
            return ""
        name = event.get("session_hash")
        return name if isinstance(name, str) else ""


def _named(request: Request) -> Iterator[str]:
    """Sessions and uploads that the address names."""
    heartbeat = re.fullmatch(_HEARTBEAT, request.url.path)
    if heartbeat:
        yield heartbeat[1]
    for name in _NAMES:
        yield from request.query_params.getlist(name)
