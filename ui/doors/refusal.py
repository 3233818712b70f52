"""A request that is turned away: a status and one line of plain text, or of JSON for the page's own script."""

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

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
