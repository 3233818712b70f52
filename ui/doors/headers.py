"""Headers that tell a browser what not to do with an answer."""

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
