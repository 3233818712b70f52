"""Which names a server answers to, and whose pages may use it.

A page on the web can make a browser send requests to this machine: under the page's own name where that name is made to mean
127.0.0.1 (DNS rebinding), and under ours from another origin. The first is refused by the Host header, the second by the
headers in which browsers say where a request comes from. Programs that are no browsers send none of those.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from ui.doors.refusal import refuse

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
        if scope["type"] in ("http", "websocket") and not self._is_own(Headers(scope=scope)):
            return await refuse(scope, receive, send, 403, "pages of other sites may not use this server")
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
