"""A request that is turned away: a status and one line of plain text."""

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send


async def refuse(scope: Scope, receive: Receive, send: Send, status: int, message: str) -> None:
    """Answer with an error, and close the connection: what the caller still sends is not read."""
    response = PlainTextResponse(message + "\n", status, {"connection": "close", "cache-control": "no-store"})
    await response(scope, receive, send)
