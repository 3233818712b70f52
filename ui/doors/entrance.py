"""Who comes in: the token of the printed address, and a name for every browser.

The token comes once, in the address; the browser then holds a cookie in its place, and the address bar shows it no longer.
A second cookie tells browsers apart. It stays, so that conversations are found again after a restart. What is kept of it is
a digest, so that neither the archive nor the log holds what would let somebody in.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.doors.rates import Rate
from ui.doors.refusal import API, refuse

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
        response = RedirectResponse("/", 303, {"cache-control": "no-store"})
        self._set(response, scope, self._key_name, self._key, None)
        return await response(scope, receive, send)

    def _naming(self, scope: Scope, send: Send) -> Send:
        """Sends a new browser's name along."""
        cookie = Response()
        self._set(cookie, scope, VISITOR, token_urlsafe(32), A_YEAR_S)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", cookie.headers["set-cookie"])
            await send(message)

        return sent

    def _set(self, response: Response, scope: Scope, name: str, value: str, max_age_s: int | None) -> None:
        is_tls = "https" in (scope["scheme"], Headers(scope=scope).get("x-forwarded-proto"))
        response.set_cookie(name, value, max_age=max_age_s, httponly=True, samesite="lax", secure=is_tls)

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
