"""Reads request bodies whole before the application is called, so that a slow sender holds up nobody else."""

from asyncio import timeout
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.doors.refusal import refuse

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
