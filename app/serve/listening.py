"""What the servers share: where they listen, and who may come in. Plain ASGI."""

import hmac
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

import typer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; any but the default can be reached from other machines.")
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes any free one.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="SQLAGENT_API_KEY", help="Callers must send it: Authorization: Bearer KEY."),
]


def guarded(app: App, api_key: str | None) -> App:
    """`app` for those who send the key; 401 for others. Without a key, for everybody."""
    wanted = f"Bearer {api_key}".encode()

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and not hmac.compare_digest(given, wanted):
            await refuse(send, 401, "wrong or missing API key", "authentication_error")
        else:
            await app(scope, receive, send)

    return checked if api_key else app


def openai_error(message: str, kind: str) -> dict[str, object]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def refuse(send: Send, status: int, message: str, kind: str) -> None:
    body = json.dumps(openai_error(message, kind)).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def listen(app: App, host: str, port: int, path: str, api_key: str | None) -> None:
    """Serve until stopped, and say on stderr where. Ends with one line where the address cannot be had."""
    import uvicorn

    from app.shared import exit_codes

    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False)
    try:
        listener = config.bind_socket()
    except SystemExit as error:
        raise exit_codes.fail(f"cannot listen on {host}:{port}", exit_codes.USAGE) from error
    print(f"Serving at http://{host}:{listener.getsockname()[1]}{path} (stop: Ctrl+C)", file=sys.stderr, flush=True)
    if host not in LOOPBACK and not api_key:
        print(
            "Everybody who reaches this address may ask; --api-key lets in who knows it.", file=sys.stderr, flush=True
        )
    uvicorn.Server(config).run(sockets=[listener])
